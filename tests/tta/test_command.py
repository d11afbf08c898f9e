import csv
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from toolkit import cli
from toolkit.tta.config import TtaConfig
from toolkit.tta.page import write_page
from toolkit.tta.runs import read_platforms

RECIPE = Path(__file__).parents[2] / "recipes" / "librispeech" / "CTC.md"
FILES = ["evaluations.csv", "index.html", "runs.csv", "steps.csv", "tta.csv", "utilisation.csv"]


def run(*arguments):
    return CliRunner().invoke(cli.main, ["tta", *map(str, arguments)])


def rows(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_a_page_from_two_trainings_and_an_equal_batch_study(training, tmp_path):
    a, b, c = (training(name, step=step) for name, step in (("a", 4.0), ("b", 2.0), ("c", 3.0)))
    prices, data = tmp_path / "platform.yaml", tmp_path / "dataset.yaml"
    prices.write_text("- {name: one, total: 1000}\n- {name: two, total: 2500}\n")
    data.write_text(
        "name: Fake\nutterances: isolated\nspeakers: dependent\nvocabulary: small\nhours: 3\n"
    )
    out = tmp_path / "out"
    result = run(
        *(f"one={a}", f"two={b}", "--equal-batch", f"one={c}", "--platform", prices),
        *("--cer", "20,12", "--wer", "24", "--dataset", data, "--out", out, "--title", "My title"),
    )
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in out.iterdir()) == FILES
    text = (out / "index.html").read_text()
    for words in ("My title", "The same with equal batches", "Fake", "isolated", "TTA times price"):
        assert words in text
    assert "A WER of 24 % takes two 1.83 minutes, one 3.17." in text
    outside = re.findall(r'(?:src|href)="(?!#|data:)[^"]*"|url\(|@import|<script', text)
    assert outside == []
    times = rows(out / "tta.csv")
    assert len(times) == 9
    of_two = next(r for r in times if r["platform"] == "two" and r["target"] == "12.0")
    assert float(of_two["tta_minutes"]) == pytest.approx((3 + 4 * 26.75) / 60, abs=1e-3)
    assert float(of_two["times_price"]) == pytest.approx(2500 * (3 + 4 * 26.75) / 60, rel=1e-3)
    assert {r["study"] for r in times} == {"default", "equal batch"}
    evaluations = rows(out / "evaluations.csv")
    assert len(evaluations) == 15
    assert (evaluations[0]["cer"], evaluations[0]["cer_usual"]) == ("40.0", "60.0")
    assert len(rows(out / "steps.csv")) == 150
    assert "CER 12 %" in result.output


def test_the_equal_batch_study_has_the_papers_targets(training, tmp_path):
    """22, 20 and 19 % WER (A34), where the other platforms have 22, 20.2 and 19.2 (A26)."""
    a, b = training("a"), training("b")
    expected = {"default": ["22.0", "20.2", "19.2"], "equal batch": ["22.0", "20.0", "19.0"]}
    for options in ([], ["--wer", "30"]):
        out = tmp_path / f"out{len(options)}"
        result = run(f"one={a}", "--equal-batch", f"one={b}", "--out", out, *options)
        assert result.exit_code == 0, result.output
        targets = {
            study: [
                row["target"]
                for row in rows(out / "tta.csv")
                if (row["study"], row["metric"]) == (study, "wer")
            ]
            for study in expected
        }
        assert targets == ({study: ["30.0"] for study in expected} if options else expected)
    page = (tmp_path / "out0/index.html").read_text()
    section = page[page.index("TTA in minutes, equal batches") :]
    for target in ("20 %", "19 %"):
        assert f">{target}</th>" in section[: section.index("</table>")]


def test_the_prices_that_the_recipe_shows_fit_its_command(training, tmp_path, monkeypatch):
    text = RECIPE.read_text(encoding="utf-8").replace("\\\n", " ")
    (command,) = re.findall(r"^toolkit tta (one=.* --platform prices\.yaml .*)", text, re.M)
    (example,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("prices.yaml").write_text(example, encoding="utf-8")
    for name in ("one", "two"):
        training(f"exp/{name}/ctc")
    result = run(*command.split())
    assert result.exit_code == 0, result.output
    page = Path("tta/index.html").read_text()
    for words in ("TTA times price", "November 2026", "on two threads"):
        assert words in page


def test_the_page_is_the_same_every_time(training, tmp_path):
    platforms = read_platforms([str(training("a", devices=1))])
    for name in ("first", "second"):
        headline = write_page(platforms, tmp_path / name, TtaConfig(cer=(20, 1), wer=()))
    assert headline == {"tta cer 20": pytest.approx((3 + 3 * 26.75) / 60, abs=0.01)}
    for name in FILES:
        first = (tmp_path / "first" / name).read_bytes()
        assert first == (tmp_path / "second" / name).read_bytes()


def test_a_training_that_has_just_started_gives_a_page(training, tmp_path):
    folder = training("a", cer=())
    assert run(folder, "--out", tmp_path / "out").exit_code == 0
    assert "none of the target accuracies" in (tmp_path / "out" / "index.html").read_text()


@pytest.mark.parametrize(
    ("options", "message", "status"),
    [
        (["--cer", "ten"], "not a list of numbers", 2),
        (["--epochs", "0"], "must be from 1", 2),
        (["--sweep", "nowhere.json"], "nowhere.json", 1),
    ],
)
def test_faults_are_reported_without_a_traceback(training, tmp_path, options, message, status):
    result = run(training("a"), "--out", tmp_path / "out", *options)
    assert result.exit_code == status
    assert message in result.output
    assert not (tmp_path / "out").exists()


def test_a_folder_without_a_log_is_reported(tmp_path):
    result = run(tmp_path)
    assert result.exit_code == 1
    assert "has no log.jsonl" in result.output


def test_the_front_end_is_shown_on_a_file(training, tmp_path):
    import numpy as np
    import soundfile

    audio = tmp_path / "tone.wav"
    soundfile.write(audio, 0.1 * np.sin(np.arange(16000) / 5), 16000)
    result = run(training("a"), "--features", audio, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    text = (tmp_path / "out" / "index.html").read_text()
    assert "80 log-mel energies" in text
    assert "13 MFCC" in text
