"""The page of an untrusted run directory."""

import json

import pytest
from lhotse import MonoCut
from lhotse.audio import AudioSource

from toolkit.report.run_page import write_report


@pytest.mark.parametrize("hide", [lambda cut: cut.append(cut), lambda cut: cut.perturb_volume(0.5)])
def test_no_command_of_an_untrusted_run_directory_is_executed(
    finished, tmp_path, monkeypatch, hide
):
    monkeypatch.chdir(tmp_path)
    for path in finished.root.glob("data/*.jsonl"):
        lines = []
        for line in path.read_text().splitlines():
            cut_json = json.loads(line)
            cut = MonoCut.from_dict(json.loads(line))
            audio = cut.recording.sources[0].source
            cut.recording.sources = [AudioSource("command", [0], f"touch ran; cat {audio}")]
            kept_fields = {
                key: cut_json[key] for key in ("id", "start", "duration", "supervisions")
            }
            lines.append(json.dumps({**hide(cut).to_dict(), **kept_fields}) + "\n")
        path.write_text("".join(lines))
    problems = write_report(finished.root, tmp_path / "page.html")
    assert any("which is not run" in str(problem) for problem in problems)
    assert not (tmp_path / "ran").exists()
