"""A recipe: numbered stages, profiles and the command line of a `run.py`.

recipe = Recipe("librispeech", Path(__file__), profiles={"demo": demo, "mini": mini})

@recipe.stage(6, "Train the LSTM with cross entropy")
def train_ce(run: Run) -> dict[str, float]:
    ...

if __name__ == "__main__":
    recipe.main()

A recipe for another corpus reuses the stages: `recipe.for_corpus(Path(__file__), profiles).main()`.
"""

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, NoReturn

from toolkit.config.settings import ConfigError, apply_overrides, list_settings, resolve_paths
from toolkit.errors import ToolkitError
from toolkit.stages.command_line import chosen_profile, run_command
from toolkit.stages.declaration import Declaration


class Recipe(Declaration):
    """Numbered stages over typed configurations, with the command line of a `run.py`."""

    def for_corpus(
        self, file: Path, profiles: Mapping[str, Callable[[], Any]], title: str = ""
    ) -> "Recipe":
        """Return a recipe of these stages for another corpus, named after its own folder.

        Args:
          file: the `run.py` of the new recipe.
          profiles: its configurations, of the same class as this recipe's.
          title: what it does; by default this recipe's title.
        """
        name = Path(file).resolve().parent.name
        title = title or self.title
        recipe = Recipe(name, file, profiles, title, self.exp_prefix, self.on_finish, self.modules)
        recipe.stages = list(self.stages)
        return recipe

    def main(self, arguments: Sequence[str] | None = None) -> NoReturn:
        """Run the command line and exit: 0, 1 (error), 2 (usage), 130 (Ctrl-C), 143 (SIGTERM)."""
        run_command(self, sys.argv[1:] if arguments is None else arguments)


class RecipeError(ToolkitError):
    """A file that declares no recipe, or cannot be imported."""


def load_recipe(path: Path) -> Recipe:
    """Import the recipe of a file, or of the `run.py` in a folder; no stage is run.

    Raises:
      RecipeError: there is no such file, it cannot be imported, or it declares no recipe.
    """
    file = path / "run.py" if path.is_dir() else path
    if file.suffix != ".py" or not file.is_file():
        raise RecipeError(f"{path} is not a recipe: give the folder or run.py of a recipe")
    spec = importlib.util.spec_from_file_location("_recipe", file.resolve())
    assert spec is not None  # as for unknown suffixes
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["_recipe"] = module  # where its dataclasses look up their types
    try:
        spec.loader.exec_module(module)
    except (SyntaxError, ImportError) as error:
        raise RecipeError(f"{file}: cannot be imported: {error}") from error
    recipes = [value for value in vars(module).values() if isinstance(value, Recipe)]
    if not recipes:
        raise RecipeError(f"{file}: declares no recipe")
    declared_here = [recipe for recipe in recipes if recipe.folder == file.resolve().parent]
    profiles = getattr(module, "PROFILES", None)
    if declared_here or not isinstance(profiles, Mapping):
        return (declared_here or recipes)[0]
    return recipes[0].for_corpus(file, profiles, module.__doc__ or "")  # as its `main` line does


@dataclass(frozen=True)
class RecipeSetting:
    """A setting of a recipe, with the source of its value."""

    key: str
    """Dotted key of the setting, as `--set` takes it."""
    value: Any
    """The value as plain data, like `default`."""
    source: str
    """"default", "profile NAME" or "--set"."""
    default: Any
    """The value without profile and `--set`."""
    expects: str
    """Type of the setting in words."""
    text: str
    """Description of the setting."""


def recipe_settings(
    recipe: Declaration, profile: str | None, overrides: Sequence[str], key: str | None
) -> list[RecipeSetting]:
    """Return the settings of a profile, changed by `overrides`.

    Args:
      profile: None takes the recipe's first.
      overrides: texts `key=value`, as of `--set`.
      key: only this setting, or those below it; None: all.

    Raises:
      SelectionError: there is no such profile.
      ConfigError: there is no such key, or a value does not fit.
    """
    name = chosen_profile(recipe, profile)
    profile_config = resolve_paths(recipe.profiles[name](), recipe.folder)
    config = apply_overrides(profile_config, overrides, Path.cwd())
    profile_values = {setting.key: setting.value for setting in list_settings(profile_config)}
    rows = []
    for setting in list_settings(config):
        if key is not None and setting.key != key and not setting.key.startswith(f"{key}."):
            continue
        source = "default" if setting.value == setting.default else f"profile {name}"
        if profile_values.get(setting.key, MISSING) != setting.value:
            source = "--set"
        rows.append(RecipeSetting(source=source, **vars(setting)))
    if not rows:
        apply_overrides(profile_config, [f"{key}=none"], Path.cwd())  # suggests a similar key
        raise ConfigError(f"unknown key `{key}`")
    return rows
