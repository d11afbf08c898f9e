"""The harness itself, on run directories made by hand."""

import json
import random
import shutil

import pytest

from tests.torture.__main__ import FailedTrialError, compare, order, stages


def test_every_stage_of_every_recipe_comes_once_before_any_comes_twice():
    found = {"long": [1, 2, 3, 5], "short": [1, 2]}
    trials = order(found, random.Random(0))
    assert sorted(trials) == [("long", n) for n in found["long"]] + [("short", 1), ("short", 2)]
    assert [name for name, _ in trials[:4]] == ["long", "short"] * 2
    assert trials == order(found, random.Random(0)) != order(found, random.Random(1))


@pytest.fixture
def runs(tmp_path):
    """A finished run, and a copy of it."""
    reference, exp = tmp_path / "reference", tmp_path / "exp"
    (reference / "stages").mkdir(parents=True)
    (reference / "model").mkdir()
    (reference / "model" / "model.safetensors").write_text("weights")
    files = {"model.safetensors": "a", "history.json": "b"}
    marker = {"outputs": {"model": {"digest": "c", "files": files}}}
    (reference / "stages" / "03.json").write_text(json.dumps(marker))
    shutil.copytree(reference, exp)
    return reference, exp


def test_equal_runs_pass_whatever_the_files_with_times_hold(runs):
    assert stages(runs[0]) == [3]
    compare(*runs, 3)
    edit(runs[1], '"b"', '"z"')
    compare(*runs, 3)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda exp: edit(exp, '"a"', '"z"'), "1 files differ: model/model.safetensors"),
        (lambda exp: edit(exp, '"model.safetensors"', '"x.txt"'), "2 files differ"),
        (lambda exp: (exp / "model" / "model.safetensors").unlink(), "not on disk"),
        (lambda exp: leave(exp / ".partial" / "03" / "x"), "left in .partial"),
    ],
)
def test_what_must_not_be_is_found(runs, damage, message):
    damage(runs[1])
    with pytest.raises(FailedTrialError, match=message):
        compare(*runs, 3)


def edit(exp, old, new):
    path = exp / "stages" / "03.json"
    path.write_text(path.read_text().replace(old, new))


def leave(path):
    path.parent.mkdir(parents=True)
    path.touch()
