"""docs/new-corpus.md, typed word for word on a corpus of two minutes, up to the first WER."""

import json
import re
import subprocess

import pytest

from tests.guide.conftest import PROJECT, blocks, make_project, typed

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

GUIDE = PROJECT / "docs" / "new-corpus.md"
LONG = "5. The whole recipe"
"""The one section whose commands take too long here."""


@pytest.fixture(scope="module")
def project(tmp_path_factory, speech):
    """A copy of the project, with the guide's recordings in it."""
    root = make_project(tmp_path_factory.mktemp("guide") / "project")
    recordings = speech(root / "speech")
    recordings.english(utterances=60)
    recordings.german()
    return root


@pytest.fixture(scope="module")
def outputs(project):
    """Type the guide's commands in order; return what each block printed, by section."""
    printed: dict[str, str] = {}
    for section, block in blocks(GUIDE):
        if section != LONG:
            printed[section] = printed.get(section, "") + typed(block, project)
    return printed


def test_the_guide_has_its_sections():
    sections = [section for section, _ in blocks(GUIDE)]
    assert LONG in sections
    assert len(sections) >= 8


def test_the_corpus_is_seen_for_what_it_is(outputs):
    printed = outputs["2. A recipe"]
    assert "60 utterances" in printed
    assert "by utterance" in printed
    assert "treated as English" in printed
    assert "caution" in printed


def test_the_report_is_shown_and_notes_nothing_but_the_few_speakers(outputs):
    printed = outputs["3. What is wrong with the data"]
    assert re.findall("^(?:ERROR|WARNING|NOTE) ([a-z-]+)", printed, re.M) == ["known-speakers"]


def test_the_first_word_error_rate(outputs, project):
    rates = re.findall(r"mono (\w+) 3gram: %WER ([\d.]+)", outputs["4. The first word error rate"])
    assert [split for split, _ in rates] == ["dev", "test"]
    # Measured: 0 and 0. Who has learnt nothing gets most of them wrong.
    assert all(float(rate) < 40 for _, rate in rates)
    text = project / "recipes/interviews/exp/base/data/test.jsonl"
    words = [json.loads(line)["supervisions"][0]["text"] for line in text.read_text().splitlines()]
    assert all(re.fullmatch(r"[A-Z' ]+", line) for line in words)


def dry_run(project):
    """Return what the recipe would do with each stage."""
    done = subprocess.run(
        ["recipes/interviews/run.py", "--dry-run"], cwd=project, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return [line.partition("would ")[2] for line in done.stdout.splitlines()]


def test_the_rest_of_the_recipe_is_ready(outputs, project):
    off = (25, 26, 29, 30, 32)
    later = ["" if number in off else "run: never run" for number in range(9, 36)]
    assert dry_run(project) == ["skip: done"] * 8 + later


def test_kaldis_form_gives_the_same_utterances(outputs, project):
    assert "60 utterances" in outputs["Kaldi data directories"]
    splits = []
    for name in ("interviews", "archive"):
        data = project / "recipes" / name / "exp" / "base" / "data"
        lines = [line for path in data.glob("*.jsonl") for line in path.read_text().splitlines()]
        supervisions = [json.loads(line)["supervisions"][0] for line in lines]
        splits.append(
            sorted((supervision["text"], supervision["speaker"]) for supervision in supervisions)
        )
    assert splits[0] == splits[1]


def test_german_is_pronounced_by_its_letters(outputs, project):
    printed = outputs["Other languages"]
    assert "not treated as English" in printed
    assert "graphemes" in printed
    lexicon = (project / "recipes/gespraeche/exp/base/lang/lexicon.txt").read_text()
    assert "\nFÄHRT F_B Ä_I H_I R_I T_E\n" in lexicon
    config = (project / "recipes/gespraeche/config.py").read_text()
    assert re.search(r'alphabet="[A-Z]+ÄÖÜ\'"', config)


def test_a_function_of_ones_own(outputs, project):
    assert "local/lectures.py" in outputs["Another layout"]
    report = (project / "recipes/lectures/exp/base/check/report.txt").read_text()
    kinds = re.findall("^(?:ERROR|WARNING|NOTE) ([a-z-]+)", report, re.M)
    assert kinds == ["one-speaker"]
    assert re.search(r"^train +20 +0 +1 ", report, re.M)


def test_a_recording_that_was_mended_is_noticed(outputs, project):
    recording = project / "speech" / "wav" / "ann" / "0000.wav"
    original = recording.read_bytes()
    recording.touch()
    assert "run: input" not in " ".join(dry_run(project))
    recording.write_bytes(original[:-2] + b"ab")
    actions = dry_run(project)
    assert actions[0] == "skip: done"
    assert re.match(r"run: input the files in `.*/speech/wav/ann` changed", actions[1])
