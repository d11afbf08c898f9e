"""Every way in which a finished stage becomes stale, and the printed reason."""

import json
import os
import re
import shutil
import time

import pytest

ALL = {1, 2, 3, 5}


def stages_run(result):
    """Return the numbers of the stages that a run has executed."""
    assert result.status == 0, result.output
    return {int(line.split()[1]) for line in result.output.splitlines() if line.startswith("== ")}


@pytest.fixture
def done(sample):
    assert stages_run(sample.main()) == ALL
    return sample


def edit(path, old, new):
    path.write_text(path.read_text().replace(old, new))


def test_a_second_run_does_nothing_and_writes_nothing_but_its_command(done):
    contents = {p: p.read_bytes() for p in done.exp.rglob("*") if p.is_file()}
    result = done.main()
    assert stages_run(result) == set()
    assert result.output.count("done, skipped") == 4
    changed = {p.name for p, content in contents.items() if p.read_bytes() != content}
    assert changed <= {"log.txt", ".lock.holder", "digests.json"}


@pytest.mark.parametrize(
    ("override", "reason", "stages"),
    [
        ("train.epochs=5", "stale: `train.epochs` 4 -> 5", {3, 5}),
        ("train.rate=1e-3", "stale: `train.rate` 0.5 -> 0.001", {3, 5}),
        ("lang.upper=yes", "stale: `lang.upper` false -> true", {2, 3, 5}),
        ("lang.extra=x,y", 'stale: `lang.extra` [] -> ["x", "y"]', {2, 3, 5}),
        ("train.rate=0.5", "", set()),
    ],
)
def test_a_parameter_makes_just_its_readers_stale(done, override, reason, stages):
    result = done.main("--set", override)
    assert stages_run(result) == stages
    assert reason in result.output
    assert stages_run(done.main("--set", override)) == set()


def test_the_content_of_a_new_corpus_folder_counts_not_its_path(done):
    copy = done.folder / "other"
    shutil.copytree(done.folder / "corpus", copy)
    assert stages_run(done.main("--set", f"corpus.root={copy}")) == set()
    os.utime(copy / "a.txt", (1, 1))
    result = done.main("--set", f"corpus.root={copy}")
    # The same texts: what the first stage makes is the same, so nothing else runs.
    assert stages_run(result) == {1}
    assert f"stale: input the files in `{copy}` changed" in result.output


def test_a_path_setting_that_is_no_input_counts_by_its_text(done):
    marker = done.exp / "stages" / "01.json"
    root = str(done.folder / "corpus")
    edit(marker, '"{corpus.root}"', f'"{root}"')  # as markers were written before
    assert stages_run(done.main()) == set()
    shutil.copytree(root, done.folder / "other")
    result = done.main("--set", f"corpus.root={done.folder / 'other'}")
    assert stages_run(result) == {1}
    assert "stale: `corpus.root`" in result.output


def test_touching_changes_nothing(done):
    for path in done.exp.rglob("*"):
        if path.is_file() and "stages" not in path.parts:
            os.utime(path)
    assert stages_run(done.main()) == set()


@pytest.mark.parametrize("shift", [-1e9, 1e9])
def test_a_changed_clock_changes_nothing(done, shift):
    for path in done.exp.rglob("*"):
        os.utime(path, (time.time() + shift, time.time() + shift))
    assert stages_run(done.main()) == set()
    # An edit with an old time, as by a clock that went back, is still an edit.
    edit(done.exp / "words.txt", "two", "TWO")
    os.utime(done.exp / "words.txt", (time.time() - 1e9, time.time() - 1e9))
    result = done.main("--dry-run")
    assert "2 Build the lexicon: would run: output `words.txt` changed" in result.output


def test_a_copied_run_directory_is_still_done(done):
    shutil.copytree(done.exp, done.folder / "copy")
    assert stages_run(done.main("--exp", done.folder / "copy")) == set()


@pytest.mark.parametrize(
    ("damage", "reason", "stages"),
    [
        (lambda exp: shutil.rmtree(exp / "model"), "output `model` was deleted", {3}),
        (lambda exp: (exp / "model" / "2.json").unlink(), "output `model/2.json` is missing", {3}),
        (
            lambda exp: edit(exp / "model" / "2.json", "a", "b"),
            "output `model/2.json` changed",
            {3},
        ),
        (lambda exp: (exp / "model" / "x").write_text(""), "output `model/x` is new", {3}),
        (
            lambda exp: edit(exp / "words.txt", "two", "too"),
            "output `words.txt` changed",
            {2},
        ),
        (lambda exp: (exp / "results.json").write_text(""), "output `results.json` changed", {5}),
        (lambda exp: (exp / "stages" / "03.json").write_text("{"), "the marker is damaged", {3}),
    ],
)
def test_a_damaged_output_is_made_again_and_equal(done, finished, damage, reason, stages):
    damage(done.exp)
    result = done.main()
    assert f"   stale: {reason}\n" in result.output
    assert stages_run(result) == stages
    assert done.outputs() == finished


def test_a_run_directory_whose_path_goes_up_can_be_moved(sample):
    away = sample.folder / "away"
    assert stages_run(sample.main("--exp", sample.folder / "corpus/../away")) == ALL
    marker = json.loads((away / "stages/03.json").read_text())
    assert sorted(marker["inputs"]) == ["lang/phones", "words.txt"]
    away.rename(sample.folder / "moved")
    assert stages_run(sample.main("--exp", sample.folder / "corpus/../moved")) == set()


def test_an_edited_input_is_named(done):
    edit(done.exp / "lang" / "phones" / "phones.txt", "e", "E")
    result = done.main("--stage", 3)
    assert "warning: stage 2 (Build the lexicon) is stale: output" in result.output
    assert "stale: input `lang/phones/phones.txt` changed" in result.output
    # The model does not depend on the phones, so decoding stays done.
    assert stages_run(result) == {3}


def test_a_missing_input_of_a_done_stage_is_named(done):
    (done.exp / "words.txt").unlink()
    result = done.main("--dry-run", "--stage", 3)
    assert "3 Train the model: would run: input `words.txt` is missing" in result.output


@pytest.mark.parametrize(
    "change",
    [
        lambda corpus: (corpus / "c.txt").write_text("five"),
        lambda corpus: (corpus / "b.txt").unlink(),
        lambda corpus: (corpus / "b.txt").rename(corpus / "c.txt"),
        lambda corpus: os.utime(corpus / "b.txt", (1, 1)),
    ],
)
def test_a_changed_corpus_is_noticed_by_its_listing(done, change):
    change(done.folder / "corpus")
    result = done.main()
    assert f"stale: input the files in `{done.folder / 'corpus'}` changed" in result.output
    assert 1 in stages_run(result)


def test_a_missing_marker_reruns_only_its_stage(done):
    (done.exp / "stages" / "02.json").unlink()
    assert stages_run(done.main()) == {2}


def test_edited_code_is_recorded_but_makes_nothing_stale(done):
    edit(done.script, '"loss": 0.125', '"loss": 0.25')
    assert stages_run(done.main()) == set()


def test_force_runs_a_done_stage_and_equal_outputs_stop_there(done, finished):
    assert stages_run(done.main("--force", 2, "--force", 3)) == {2, 3}
    assert done.outputs() == finished


def test_a_change_of_the_same_size_within_a_moment_is_noticed(done):
    for text in ("one\ntwo\nABC", "one\ntwo\nDEF", "one\ntwo\nGHI"):
        (done.exp / "words.txt").write_text(text)
        result = done.main("--stage", 3, "--stop-stage", 3)
        assert stages_run(result) == {3}


def test_markers_record_the_provenance_of_a_result(done):
    marker = json.loads((done.exp / "stages" / "03.json").read_text())
    assert marker["parameters"] == {"train": {"epochs": 4, "rate": 0.5}}
    assert marker["inputs"].keys() == {"words.txt", "lang/phones"}
    assert marker["outputs"]["model"]["files"].keys() >= {"0.json", "final.txt"}
    assert marker["headline"] == {"loss": 0.125}
    assert marker["command"] == str(done.script)
    assert marker["attempts"][-1]["code"]["versions"]["python"]
    computer = re.escape(os.uname().nodename)
    assert not re.search(rf"\b{computer}\b", json.dumps(marker))
