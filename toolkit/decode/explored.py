"""What was found in the lattices of a split, and how sure of it to be."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolkit.align.ctm import CtmEntry, write_ctm
from toolkit.decode.confidence import Calibration, calibration_error, cross_entropy_gain
from toolkit.score.align import align
from toolkit.storage.files import write_atomically


@dataclass(frozen=True)
class Word:
    """One recognised word."""

    word: str
    start: float
    """Seconds from the beginning of the utterance."""
    duration: float
    """Seconds."""
    posterior: float
    """Not yet calibrated."""


@dataclass(frozen=True)
class Explored:
    """What was found in the lattice of one utterance."""

    utterance: str
    """Utterance id."""
    nbest: tuple[tuple[float, float, float, str], ...]
    """Score, acoustic and LM log-probability, words: the best first."""
    words: tuple[Word, ...]
    """The best sequence."""


def read_explored(path: Path) -> list[Explored]:
    """Read the lines that a worker wrote of a shard."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        plain = json.loads(line)
        nbest = tuple((s, a, lm, words) for s, a, lm, words in plain["nbest"])
        words = tuple(Word(*fields) for fields in plain["words"])
        found.append(Explored(plain["utterance"], nbest, words))
    return found


def write_confidences(
    found: Mapping[str, Sequence[Explored]],
    references: Mapping[str, Mapping[str, str]],
    tune_on: Sequence[str],
    out: Path,
) -> dict[str, float]:
    """Calibrate the posteriors on some splits; write CTM files and how good confidences are.

    Args:
      found: by split.
      references: transcripts by split and utterance.
      tune_on: the splits that calibrate.
      out: see `explore_system`.

    Returns:
      The expected calibration error by split.
    """
    judged = {split: _judge(found[split], references[split]) for split in found}
    posteriors = [p for split in tune_on for p in judged[split][0]]
    correct = [right for split in tune_on for right in judged[split][1]]
    calibration = Calibration.fit(posteriors, correct)
    calibration.save(out / "calibration.json")
    lines = ["split\twords\tcorrect\tposterior_ece\tposterior_nce\tece\tnce\tcalibrated_on"]
    errors = {}
    for split, (raw, right) in judged.items():
        sure = calibration(raw)
        errors[f"ece {split}"] = calibration_error(sure, right)
        numbers = [sum(right) / max(len(right), 1)]
        for values in (raw, sure):
            numbers += [calibration_error(values, right), cross_entropy_gain(values, right)]
        columns = [split, str(len(right)), *(f"{number:.4f}" for number in numbers)]
        lines.append("\t".join([*columns, "+".join(tune_on)]))
        entries = [
            CtmEntry(one.utterance, "1", word.start, word.duration, word.word, confidence)
            for one in found[split]
            for word, confidence in zip(
                one.words, calibration([word.posterior for word in one.words]), strict=True
            )
        ]
        write_ctm(entries, out / split / "words.ctm")
    write_atomically(out / "confidence.tsv", "\n".join(lines) + "\n")
    return errors


def _judge(
    found: Sequence[Explored], references: Mapping[str, str]
) -> tuple[list[float], list[bool]]:
    """The posterior of every recognised word, and whether the reference has it there."""
    posteriors, correct = [], []
    for one in found:
        words = [word.word for word in one.words]
        pairs = align(references[one.utterance].split(), words)
        posteriors += [word.posterior for word in one.words]
        correct += [ref == hyp for ref, hyp in pairs if hyp is not None]
    return posteriors, correct
