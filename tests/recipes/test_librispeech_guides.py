"""The commands of the guides on a finished run, word for word."""

import shutil

import pytest

pytest.importorskip("soundfile")

pytestmark = pytest.mark.long


@pytest.mark.parametrize("page", ["first-run.md", "reading-the-report.md"])
def test_the_commands_of_a_guide_work_on_a_finished_run(finished, tmp_path, page):
    """The commands run word for word in a project whose demo is this run."""
    from tests.guide.conftest import PROJECT, blocks, make_project, typed

    project = make_project(tmp_path / "project")
    shutil.copytree(finished.root, project / "recipes/librispeech/exp/demo")
    outputs = [typed(block, project) for _, block in blocks(PROJECT / "docs" / page)]
    written = {"first-run.md": "words", "reading-the-report.md": "report.html"}
    assert (project / written[page]).exists()
    if page == "first-run.md":
        assert "35     Write the recogniser and aligner bundles" in outputs[0]
        recordings = list((finished.root / "corpus/test").rglob("*.flac"))
        assert all(f"\n{path.stem} " in outputs[2] for path in recordings)
        assert len(list((project / "words").rglob("*.ctm"))) == len(recordings)
        assert "would run" in outputs[3]
    assert "could not be made" not in " ".join(outputs)
