"""The three recipes at the sizes of `tests/recipes`, as commands."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from local.synthetic.corpus import SyntheticConfig, generate
from local.synthetic.text import vocabulary
from tests.recipes.conftest import CTC, DEMO, PROJECT, SCRIPT, SMALL, SMALL_CTC
from tests.recipes.test_farfield_ssl import CLEAN, ROOMS
from tests.recipes.test_farfield_ssl import SCRIPT as FARFIELD
from tests.recipes.test_farfield_ssl import SMALL as SMALL_FARFIELD
from toolkit.lang.lexicon import Lexicon

NAMES = ("hybrid", "ctc", "farfield")


@dataclass(frozen=True)
class Command:
    """A recipe with its settings."""

    script: Path
    settings: Sequence[str]

    def start(self, exp: Path, log: Path, *arguments: str, **options) -> subprocess.Popen:
        """Start it in a process group of its own; what it says is appended to `log`.

        Args:
          exp: the run directory.
          log: a file.
          arguments: further ones.
          options: of `subprocess.Popen`.
        """
        words = [word for setting in self.settings for word in ("--set", setting)]
        command = [sys.executable, str(self.script), *words, "--exp", str(exp), "--jobs", "1"]
        with open(log, "a") as file:
            return subprocess.Popen(
                [*command, *arguments],
                env=os.environ | {"PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1"},
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **options,
            )


def command(name: str, folder: Path) -> Command:
    """Return a recipe; its lexicon and its clean corpus are made in `folder` once.

    Args:
      name: one of `NAMES`.
      folder: for what the recipes read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lexicon, clean = folder / "lexicon.txt", folder / "clean"
    if not lexicon.exists():
        Lexicon.from_cmudict().restrict(vocabulary()).write(lexicon)
    if name == "ctc":
        return Command(CTC, (*DEMO, *SMALL_CTC))
    if name == "hybrid":
        return Command(SCRIPT, (*DEMO, *SMALL, f"lang.lexicon={lexicon}"))
    if not clean.exists():
        generate(SyntheticConfig(**CLEAN), clean, jobs=1)
    given = (f"corpus.root={clean}", f"lm.text={clean / 'lm.txt'}", f"lang.lexicon={lexicon}")
    return Command(FARFIELD, (*given, *ROOMS, *SMALL_FARFIELD))
