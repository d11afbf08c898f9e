"""Functions that stages of several recipes call; a module is imported when a stage first uses it.

`--list`, `--help` and `toolkit config` import a recipe's `run.py` and so need neither torch nor
lhotse.

Unless their description says otherwise, functions that return numbers by name return a stage's
headline, see `toolkit.stages.declaration.Headline`.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from recipes.steps import (
        bundle,
        ctc,
        data,
        decoding,
        farfield,
        gmm,
        learning,
        networks,
        settings,
    )

__all__ = [
    "bundle",
    "ctc",
    "data",
    "decoding",
    "farfield",
    "gmm",
    "learning",
    "networks",
    "settings",
]


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return import_module(f"{__name__}.{name}")
