"""A stage that is switched off keeps its outputs."""

from dataclasses import dataclass

import pytest

from toolkit.stages.declaration import Stage
from toolkit.stages.recipe import Recipe


@dataclass(frozen=True)
class Config:
    """Settings of a recipe with a stage that can be off."""

    network: bool = True
    rescoring: bool = False
    epochs: int = 1
    objective: str = "ce"


@pytest.fixture
def run(tmp_path, capsys):
    recipe = Recipe("off", tmp_path / "run.py", {"base": Config})
    trainings = []

    @recipe.stage(1, "Train", when="network")
    def train(run):
        trainings.append(run.config.epochs)
        run.make("weights").write_text(f"{run.config.epochs}\n")

    @recipe.stage(2, "List", when="network or rescoring")
    def listed(run):
        run.make("list").write_text("a\n")

    @recipe.stage(3, "Train anew", when="objective=mmi")
    def train_again(run):
        trainings.append(run.config.objective)
        run.make("anew").write_text("a\n")

    def run_recipe(*options):
        with pytest.raises(SystemExit) as end:
            recipe.main(["--exp", str(tmp_path / "exp"), *options])
        captured = capsys.readouterr()
        assert end.value.code in (0, None), captured.err
        return captured.out

    run_recipe.trainings, run_recipe.weights = trainings, tmp_path / "exp" / "weights"
    return run_recipe


def test_outputs_of_a_stage_stay_while_it_is_off(run):
    run()
    off = ("--set", "network=false")
    assert "1 Train: does nothing: network is off" in run(*off, "--dry-run")
    assert "network is off; its earlier outputs stay" in run(*off, "--set", "epochs=2")
    assert run.weights.read_text() == "1\n"
    assert run.trainings == [1]
    run()
    assert run.trainings == [1]
    run("--set", "epochs=2")
    assert run.trainings == [1, 2]


def test_forcing_a_stage_that_is_off_removes_its_outputs(run):
    run()
    run("--set", "network=false", "--force", "1")
    assert not run.weights.exists()


def test_a_stage_that_never_ran_does_nothing(run):
    output = run("--set", "network=false")
    assert "== 1 Train" in output
    assert run.trainings == []
    assert "done" in run("--set", "network=false", "--list")


@pytest.mark.parametrize(
    ("network", "rescoring", "enabled"), [(1, 0, True), (0, 1, True), (0, 0, False)]
)
def test_one_of_several_settings_enables_a_stage(network, rescoring, enabled):
    stage = Stage(2, "List", lambda run: None, when="network or rescoring")
    assert stage.is_enabled(Config(bool(network), bool(rescoring))) is enabled


def test_a_value_of_a_setting_enables_a_stage(run):
    assert "3 Train anew: does nothing: objective=mmi is not set" in run("--dry-run")
    run("--stop-stage", "2")
    assert run.trainings == [1]
    run("--set", "objective=mmi")
    assert run.trainings == [1, "mmi"]
    assert "objective=mmi is not set; its earlier outputs stay" in run()


def test_a_recipe_of_one_stage_names_it(tmp_path, capsys):
    recipe = Recipe("one", tmp_path / "run.py", {"base": Config})
    recipe.stage(1, "Only")(lambda run: None)
    with pytest.raises(SystemExit) as end:
        recipe.main(["--exp", str(tmp_path / "exp"), "--stage", "2"])
    assert end.value.code == 1
    assert "Stages are numbered from 1 to 1" in capsys.readouterr().err
