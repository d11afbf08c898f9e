"""A stage whose setting is switched off keeps what it made."""

from dataclasses import dataclass

import pytest

from toolkit.stages.declaration import Stage
from toolkit.stages.recipe import Recipe


@dataclass(frozen=True)
class Config:
    """Settings of a recipe with a stage that can be off."""

    network: bool = True
    other: bool = False
    epochs: int = 1
    objective: str = "ce"


@pytest.fixture
def run(tmp_path, capsys):
    recipe = Recipe("off", tmp_path / "run.py", {"base": Config})
    made = []

    @recipe.stage(1, "Train", when="network")
    def train(run):
        made.append(run.config.epochs)
        run.make("weights").write_text(f"{run.config.epochs}\n")

    @recipe.stage(2, "List", when="network or other")
    def listed(run):
        run.make("list").write_text("a\n")

    @recipe.stage(3, "Train anew", when="objective=mmi")
    def anew(run):
        made.append(run.config.objective)
        run.make("anew").write_text("a\n")

    def typed(*more):
        with pytest.raises(SystemExit) as end:
            recipe.main(["--exp", str(tmp_path / "exp"), *more])
        said = capsys.readouterr()
        assert end.value.code in (0, None), said.err
        return said.out

    typed.made, typed.weights = made, tmp_path / "exp" / "weights"
    return typed


def test_what_a_stage_made_stays_while_it_is_off(run):
    run()
    off = ("--set", "network=false")
    assert "1 Train: does nothing: network is off" in run(*off, "--dry-run")
    assert "network is off, its earlier outputs stay" in run(*off, "--set", "epochs=2")
    assert run.weights.read_text() == "1\n"
    assert run.made == [1]
    run()
    assert run.made == [1]
    run("--set", "epochs=2")
    assert run.made == [1, 2]


def test_a_stage_that_is_forced_while_it_is_off_gives_up_what_it_made(run):
    run()
    run("--set", "network=false", "--force", "1")
    assert not run.weights.exists()


def test_a_stage_that_never_ran_does_nothing(run):
    said = run("--set", "network=false")
    assert "== 1 Train" in said
    assert run.made == []
    assert "done" in run("--set", "network=false", "--list")


@pytest.mark.parametrize(
    ("network", "other", "wanted"), [(1, 0, True), (0, 1, True), (0, 0, False)]
)
def test_one_of_several_settings_is_enough(network, other, wanted):
    stage = Stage(2, "List", lambda run: None, when="network or other")
    assert stage.is_enabled(Config(bool(network), bool(other))) is wanted


def test_a_value_of_a_setting_asks_for_a_stage(run):
    assert "3 Train anew: does nothing: objective=mmi is not set" in run("--dry-run")
    run("--stop-stage", "2")
    assert run.made == [1]
    run("--set", "objective=mmi")
    assert run.made == [1, "mmi"]
    assert "objective=mmi is not set, its earlier outputs stay" in run()


def test_a_recipe_of_one_stage_names_it(tmp_path, capsys):
    recipe = Recipe("one", tmp_path / "run.py", {"base": Config})
    recipe.stage(1, "Only")(lambda run: None)
    with pytest.raises(SystemExit) as end:
        recipe.main(["--exp", str(tmp_path / "exp"), "--stage", "2"])
    assert end.value.code == 1
    assert "Stages are numbered from 1 to 1" in capsys.readouterr().err
