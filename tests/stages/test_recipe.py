import json
import pickle
from dataclasses import dataclass
from functools import partial
from importlib import import_module

import pytest

from toolkit.config.settings import ConfigError
from toolkit.errors import ToolkitError
from toolkit.stages.recipe import Recipe


def test_stages_are_declared_in_ascending_order(tmp_path):
    recipe = Recipe("r", tmp_path / "run.py", {})
    function = recipe.stage(2, "two")(lambda run: None)
    assert recipe.stages[0].function is function
    recipe.stage(5, "five")(lambda run: None)
    for number in (5, 3):
        with pytest.raises(ValueError, match="greater than that of the stage before"):
            recipe.stage(number, "again")(lambda run: None)
    with pytest.raises(ValueError, match="must be at least 0"):
        Recipe("r", tmp_path / "run.py", {}).stage(-1, "minus")(lambda run: None)


def test_a_function_can_be_a_stage_of_several_recipes(tmp_path):
    def write_name(run, name="one"):
        return {"written": f"{run} {name}"}

    first, second = (Recipe(name, tmp_path / name, {}) for name in ("first", "second"))
    first.add(3, "Write a name", write_name)
    second.add(5, "Write a name", write_name, name="two")
    assert [(stage.number, stage.title) for stage in first.stages] == [(3, "Write a name")]
    assert [(stage.number, stage.title) for stage in second.stages] == [(5, "Write a name")]
    assert first.stages[0].function("run") == {"written": "run one"}
    assert second.stages[0].function("run") == {"written": "run two"}


@pytest.mark.parametrize("name", ["librispeech.run", "librispeech.run_ctc", "farfield_ssl.run"])
def test_stages_of_the_recipes_can_be_sent_to_the_process_in_the_background(name):
    stages = import_module(f"recipes.{name}").recipe.stages
    restored = pickle.loads(pickle.dumps(stages))
    assert [stage.title for stage in restored] == [stage.title for stage in stages]


class MissingError(ToolkitError):
    """A requirement of a stage is missing."""


def test_stages_that_will_run_are_checked_before_the_first_one(tmp_path):
    recipe, done = Recipe("r", tmp_path / "run.py", {"a": Settings}), []
    write_output = partial(write_into, done)

    def check(config):
        if config.far:
            raise MissingError("no cluster: say far=false")

    recipe.stage(1, "one")(partial(write_output, "one"))
    recipe.stage(2, "two", check=check)(partial(write_output, "two"))

    def status(*arguments):
        done.clear()
        with pytest.raises(SystemExit) as exit_:
            recipe.main(arguments)
        return exit_.value.code, list(done)

    assert status("--set", "far=true") == (1, [])
    assert status("--set", "far=true", "--list") == (0, [])
    assert status("--set", "far=true", "--stop-stage", "1") == (0, ["one"])
    assert status() == (0, ["two"])
    assert status("--set", "far=true") == (0, [])
    assert status("--set", "far=true", "--force", "2") == (1, [])


@dataclass(frozen=True)
class Settings:
    far: bool = False


def write_into(done, name, run):
    done.append(name)
    run.make(name).write_text(name)


def test_another_corpus_takes_the_same_stages(tmp_path):
    recipe = Recipe("first", tmp_path / "first" / "run.py", {"a": dict}, title="What it does")
    recipe.stage(1, "one")(lambda run: None)
    second = recipe.for_corpus(tmp_path / "second" / "run.py", {"b": dict})
    assert (second.name, second.title, list(second.profiles)) == ("second", "What it does", ["b"])
    assert second.directory("b") == tmp_path.resolve() / "second" / "exp" / "b"
    assert second.stages == recipe.stages
    second.stage(2, "two")(lambda run: None)
    assert len(recipe.stages) == 1


def test_the_folder_is_that_of_the_file_itself(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "run.py").write_text("")
    (tmp_path / "link.py").symlink_to(tmp_path / "real" / "run.py")
    assert Recipe("r", tmp_path / "link.py", {}).folder == (tmp_path / "real").resolve()


@dataclass(frozen=True)
class NoSettings:
    """A configuration without settings."""


def refuse_profile():
    raise ConfigError("the profile lacks a corpus")


@pytest.mark.parametrize(
    ("profile", "arguments", "message"),
    [
        (NoSettings, ["--help"], "KEY=VALUE"),
        (refuse_profile, ["--list"], "error: the profile lacks a corpus"),
    ],
)
def test_profiles_without_settings_and_faulty_profiles(
    tmp_path, capsys, profile, arguments, message
):
    recipe = Recipe("r", tmp_path / "run.py", {"a": profile})
    recipe.stage(1, "one")(lambda run: None)
    with pytest.raises(SystemExit) as exit_:
        recipe.main(arguments)
    assert exit_.value.code == (1 if profile is refuse_profile else 0)
    assert message in "".join(capsys.readouterr())


def test_the_list_in_json_has_no_infinity(tmp_path, capsys):
    recipe = Recipe("r", tmp_path / "run.py", {"a": Settings})
    recipe.stage(1, "one")(lambda run: {"ppl": float("inf"), "loss": float("nan"), "n": 2})
    for arguments in ([], ["--list", "--json"]):
        capsys.readouterr()
        with pytest.raises(SystemExit):
            recipe.main(arguments)
    (row,) = json.loads(capsys.readouterr().out)
    assert row["result"] == {"ppl": None, "loss": None, "n": 2}


def test_a_stage_runs_only_when_its_setting_enables_it(tmp_path):
    recipe, done = Recipe("r", tmp_path / "run.py", {"a": Nested}), []
    recipe.stage(1, "one", when="inner.far")(partial(write_into, done, "one"))
    recipe.stage(2, "two")(partial(write_into, done, "two"))
    was_enabled = False
    for far, new in (("false", ["two"]), ("true", ["one"]), ("true", []), ("false", [])):
        was_enabled |= far == "true"
        done.clear()
        with pytest.raises(SystemExit) as exit_:
            recipe.main(["--set", f"inner.far={far}"])
        assert (exit_.value.code, done) == (0, new)
        assert (tmp_path / "exp/a/one").exists() == was_enabled  # what it made stays


@dataclass(frozen=True)
class Nested:
    inner: Settings = Settings()
