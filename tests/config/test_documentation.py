"""Settings with their documentation."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from toolkit.config.settings import field_texts, list_settings


@dataclass(frozen=True)
class Inner:
    size: int = 3
    """Number of
    things (A12)."""
    path: Path | None = None


@dataclass(frozen=True)
class Outer:
    inner: Inner = Inner(size=5)
    """A section."""
    fallback: Inner | None = None
    """Not set."""
    names: tuple[str, ...] = field(default=("a",))
    """Names."""


def test_values_defaults_and_texts():
    settings = {setting.key: setting for setting in list_settings(Outer(Inner(7, Path("x"))))}
    assert list(settings) == ["inner.size", "inner.path", "fallback", "names"]
    size = settings["inner.size"]
    assert (size.value, size.default, size.expects) == (7, 5, "int")
    assert size.text == "Number of things."
    assert (settings["inner.path"].value, settings["inner.path"].default) == ("x", None)
    assert (settings["fallback"].value, settings["fallback"].text) == (None, "Not set.")
    assert settings["names"].value == settings["names"].default == ["a"]


def test_texts_are_inherited():
    @dataclass(frozen=True)
    class Special(Inner):
        size: int = 4
        """Other."""
        more: int = 1
        """More."""

    assert field_texts(Special) == {"size": "Other.", "more": "More."}


@pytest.mark.parametrize("recipe", ["librispeech.config", "librispeech.ctc_config"])
def test_every_setting_of_the_recipes_is_documented(recipe):
    import importlib

    profiles = importlib.import_module(f"recipes.{recipe}").PROFILES
    for profile in profiles.values():
        config = profile()
        settings = list(list_settings(config))
        assert [setting.key for setting in settings if not setting.text] == []
