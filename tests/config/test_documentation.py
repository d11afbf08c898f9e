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
    other: Inner | None = None
    """Not set."""
    names: tuple[str, ...] = field(default=("a",))
    """Names."""


def test_values_defaults_and_texts():
    found = {one.key: one for one in list_settings(Outer(Inner(7, Path("x"))))}
    assert list(found) == ["inner.size", "inner.path", "other", "names"]
    size = found["inner.size"]
    assert (size.value, size.default, size.expects) == (7, 5, "int")
    assert size.text == "Number of things."
    assert (found["inner.path"].value, found["inner.path"].default) == ("x", None)
    assert (found["other"].value, found["other"].text) == (None, "Not set.")
    assert found["names"].value == found["names"].default == ["a"]


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
        found = list(list_settings(config))
        assert [one.key for one in found if not one.text] == []
