"""The card of a bundle: what recognises, what it was trained on, and its error rates."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from toolkit.config.convert import read_plain
from toolkit.decode.bundle.settings import ADVICE, BundleError
from toolkit.storage.files import write_atomically

CARD = "card.json"
SYNTHETIC = "synthetic"
"""The reader of corpora whose speech is synthetic."""


@dataclass(frozen=True)
class Card:
    """What a bundle contains. Recognition and alignment print it when they start."""

    system: str
    """Name of the system, such as chain."""
    model: str
    """Kind of the acoustic model and its features."""
    words: int
    """Words in the vocabulary."""
    hours: float
    """Hours of training speech, without augmented copies."""
    speakers: int
    """Speakers of the training speech."""
    corpus: str
    """The recipe's `corpus.name`; "synthetic": voices of a synthesiser."""
    lm: str = ""
    """The language model of the last pass; empty: an aligner, which has none."""
    wer: dict[str, float] = field(default_factory=dict)
    """WER in percent by split, each utterance with the speaker's other utterances."""
    wer_unknown_speaker: dict[str, float] = field(default_factory=dict)
    """WER in percent by split, every utterance recognised alone."""
    tuned_on: tuple[str, ...] = ()
    """Those of the splits on which weights were tuned and the system was chosen."""

    def __str__(self) -> str:
        lm = f" with {self.lm}" if self.lm else ""
        parts = [
            f"{self.system}: {self.model}{lm}",
            f"{self.words:,} words",
            f"trained on {self._speech()}",
        ]
        if self.wer:
            parts.append(self._error_rates())
        return printable("; ".join(parts))

    def _speech(self) -> str:
        hours = f"{self.hours:.2g}" if self.hours < 10 else f"{self.hours:,.0f}"
        if self.corpus == SYNTHETIC:
            return f"{hours} h of synthetic speech ({self.speakers} voices)"
        return f"{hours} h of speech (corpus {self.corpus}, {self.speakers} speakers)"

    def _error_rates(self) -> str:
        """The error rates on the test splits, or where there are none on those of tuning."""
        test = [split for split in self.wer if split not in self.tuned_on]
        kind = "test set" if test else "development set"
        rates = []
        for split in test or self.wer:
            rate, meaning = f"{self.wer[split]:.2f} %", "speaker known"
            if split in self.wer_unknown_speaker:
                rate += f" / {self.wer_unknown_speaker[split]:.2f} %"
                meaning += " / unknown"
            name = "" if split in ("test", "dev") else f" {split}"
            rates.append(f"{rate} ({meaning}) on its own {kind}{name}")
        return f"WER {', '.join(rates)}"


def printable(text: str) -> str:
    """Return a text of somebody else's bundle without control characters."""
    return "".join(c if c.isprintable() else "?" for c in text)


def write_card(bundle: Path, card: Card) -> None:
    """Write the card into the folder of a bundle."""
    write_atomically(bundle / CARD, json.dumps(asdict(card), indent=1) + "\n")


def read_card(bundle: Path) -> Card | None:
    """Read the card of a bundle; None if it has none.

    Raises:
      BundleError: it cannot be read.
    """
    if not (bundle / CARD).exists():
        return None
    return read_plain(bundle / CARD, Card, BundleError, ADVICE)
