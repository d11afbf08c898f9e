"""The settings of a recipe: value, source, default, type and documentation of each."""

from collections.abc import Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from toolkit.config.settings import ConfigError, apply_overrides, list_settings, resolve_paths
from toolkit.stages.command_line import chosen_profile
from toolkit.stages.declaration import Declaration


@dataclass(frozen=True)
class RecipeSetting:
    """A setting of a recipe, with the source of its value."""

    key: str
    """Dotted, as `--set` takes it."""
    value: Any
    """The value as plain data, like `default`."""
    source: str
    """"default", "profile NAME" or "--set"."""
    default: Any
    """The value without profile and `--set`."""
    expects: str
    """Its type in words."""
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
        apply_overrides(profile_config, [f"{key}=none"], Path.cwd())  # says which key is near
        raise ConfigError(f"unknown key `{key}`")
    return rows
