"""Choice of the dictionary search's beam: its width and margin, on the development set."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from toolkit.config.fields import read_plain
from toolkit.decode.ctc.decoder import CtcDecodeError, Hypothesis, LogProbs
from toolkit.decode.ctc.words import WordsDecoder
from toolkit.score.wer import score
from toolkit.storage.files import write_atomically

MOST = 4096
"""Widest beam that is tried."""
IMPROVED = 0.01
"""Share of utterances that a beam of twice the width may improve if it is to count as converged."""


@dataclass(frozen=True)
class BeamTuneConfig:
    """The beams to try."""

    widths: tuple[int, ...] = (16, 32, 64, 128, 256, 512)
    """Widths, ascending; the last is doubled while twice the width finds better texts."""
    margins: tuple[float, ...] = (8.0, 10.0, 12.0, 15.0, 20.0, 25.0)
    """Margins in natural log units, ascending."""

    def __post_init__(self) -> None:
        for name in ("widths", "margins"):
            values = getattr(self, name)
            if not values or min(values) <= 0 or list(values) != sorted(set(values)):
                raise ValueError(f"{name} are {values}, need to be above 0 and ascending")


@dataclass(frozen=True)
class Widened:
    """A width, and how often twice that width finds another text with a higher score."""

    width: int
    improved: float
    """Share of the utterances."""

    @property
    def converged(self) -> bool:
        """Whether a wider beam hardly changes anything."""
        return self.improved <= IMPROVED


@dataclass(frozen=True)
class TunedBeam:
    """The chosen beam."""

    width: int
    margin: float
    errors: int
    """Word errors with it."""
    words: int
    """Words of the references."""


def widen(
    decoder: WordsDecoder, utterances: Sequence[LogProbs], jobs: int = 1, most: int = MOST
) -> list[Widened]:
    """Double a decoder's beam until that hardly helps any more, or it is `most` wide.

    Returns:
      What was tried: the decoder's own width first. The last one's width is the answer.
    """
    width, tried = decoder.config.width, []
    before = _best(decoder, utterances, jobs)
    while True:
        wider = _best(decoder.widened(2 * width), utterances, jobs)
        better = sum(
            new.text != old.text and new.score > old.score
            for old, new in zip(before, wider, strict=True)
        )
        tried.append(Widened(width, better / max(1, len(wider))))
        if tried[-1].converged or 2 * width > most:
            return tried
        width, before = 2 * width, wider


def _best(decoder: WordsDecoder, utterances: Sequence[LogProbs], jobs: int) -> list[Hypothesis]:
    return [found[0] for found in decoder.decode_many(utterances, jobs)]


def tune_beam(
    decoder: WordsDecoder,
    log_probs: Mapping[str, LogProbs],
    references: Mapping[str, str],
    config: BeamTuneConfig,
    out: Path,
    jobs: int = 1,
) -> TunedBeam:
    """Return the narrowest beam with no more word errors than the widest.

    First the width, at the widest margin, then the margin. What it costs is not measured, so that
    the choice does not depend on the machine.

    Args:
      decoder: with tuned weights.
      log_probs: [T, C] of each utterance, by id.
      references: transcript by utterance id.
      config: the beams to try.
      out: the folder that gets `beams.tsv` and, last, `beam.json`; an existing `beam.json` is
        returned without decoding.
      jobs: see `Decoder.decode_many`.

    Raises:
      CtcDecodeError: an existing `beam.json` cannot be read.
    """
    stored = out / "beam.json"
    if os.path.lexists(stored):
        return read_plain(stored, TunedBeam, CtcDecodeError, "remove it to tune again")
    utterances, tried = list(log_probs.values()), []

    def errors(width: int, margin: float) -> int:
        found = decoder.with_beam(width, margin).decode_many(utterances, jobs)
        texts = [hypotheses[0].text for hypotheses in found]
        scored = score(references, dict(zip(log_probs, texts, strict=True)))
        tried.append(TunedBeam(width, margin, scored.errors, scored.ref_units))
        return scored.errors

    margin = config.margins[-1]
    width = widen(decoder.with_beam(config.widths[-1], margin), utterances, jobs)[-1].width
    most = errors(width, margin)
    width = next((w for w in config.widths if w < width and errors(w, margin) <= most), width)
    margin = next((m for m in config.margins[:-1] if errors(width, m) <= most), margin)
    best = next(one for one in tried if (one.width, one.margin) == (width, margin))
    lines = ["width\tmargin\terrors\twords"]
    lines += [f"{t.width}\t{t.margin:g}\t{t.errors}\t{t.words}" for t in tried]
    write_atomically(out / "beams.tsv", "\n".join(lines) + "\n")
    write_atomically(stored, json.dumps(asdict(best), indent=1) + "\n")
    return best
