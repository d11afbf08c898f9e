"""The three recipes at the sizes of `tests/recipes`, as commands."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from local.synthetic.config import SyntheticConfig
from local.synthetic.corpus import generate
from local.synthetic.text import vocabulary
from tests.recipes.conftest import CTC, DEMO, FEW, PROJECT, QUICKEST, SCRIPT, SMALL, SMALL_CTC
from tests.recipes.test_farfield_ssl import CLEAN, ROOMS
from tests.recipes.test_farfield_ssl import SCRIPT as FARFIELD
from tests.recipes.test_farfield_ssl import SMALL as SMALL_FARFIELD
from toolkit.lang.lexicon import Lexicon

NAMES = ("hybrid", "ctc", "farfield")
QUICK = {
    "hybrid": QUICKEST,
    "ctc": (
        *FEW,
        *("train.epochs=2", "evaluation_width=1", "decode.tune_width=2", "decode.words.width=4"),
        *("decode.prefix.width=4", "decode.tune.word_bonuses=0", "sweep=1,2"),
    ),
    "farfield": (
        *(f"{s}.epochs=1" for s in ("baseline", "teacher", "student", "self_trained")),
        *("decode.scales=0.4", "decode.penalties=0", "decode.beam.max_active=300"),
        "choice_of_k.ks=5",
    ),
}
"""What makes stages short: error rates do not matter here."""


@dataclass(frozen=True)
class Command:
    """A recipe with its settings."""

    script: Path
    settings: Sequence[str]

    def arguments(self, exp: Path, jobs: int = 1) -> list[str]:
        """Return its command line for a run directory."""
        words = [word for setting in self.settings for word in ("--set", setting)]
        return [*words, "--exp", str(exp), "--jobs", str(jobs)]

    def finish(self, exp: Path, log: Path) -> int:
        """Run it undisturbed in a new process; append its output to `log`.

        Returns:
          The exit status.
        """
        with open(log, "a") as file:
            return subprocess.run(
                [sys.executable, str(self.script), *self.arguments(exp)],
                env=os.environ | {"PYTHONPATH": str(PROJECT)},
                stdout=file,
                stderr=subprocess.STDOUT,
                check=False,
            ).returncode


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
        return Command(CTC, (*DEMO, *SMALL_CTC, *QUICK[name]))
    if name == "hybrid":
        return Command(SCRIPT, (*DEMO, *SMALL, f"lang.lexicon={lexicon}", *QUICK[name]))
    if not clean.exists():
        generate(SyntheticConfig(**CLEAN), clean, jobs=1)
    paths = (f"corpus.root={clean}", f"lm.text={clean / 'lm.txt'}", f"lang.lexicon={lexicon}")
    return Command(FARFIELD, (*paths, *ROOMS, *SMALL_FARFIELD, *QUICK[name]))
