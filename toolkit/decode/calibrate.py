"""N-best lists and word posteriors of decoded splits, and the calibration of the posteriors."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolkit.align.ctm import CtmEntry, write_ctm
from toolkit.decode.confidence import Calibration, calibration_error, cross_entropy_gain
from toolkit.score.alignment import align
from toolkit.storage.files import write_atomically


@dataclass(frozen=True)
class WordPosterior:
    """One recognised word with its posterior."""

    word: str
    start: float
    """Seconds from the beginning of the utterance."""
    duration: float
    """Seconds."""
    posterior: float
    """Lattice posterior, not calibrated."""


@dataclass(frozen=True)
class LatticeSummary:
    """N-best list and word posteriors of one utterance."""

    utterance: str
    """Utterance id."""
    audio_seconds: float
    """Length of the utterance."""
    seconds: float
    """Processor time of network, search and n-best list."""
    nbest: tuple[tuple[float, float, float, str], ...]
    """(total score, acoustic and LM log-probability, words) of each hypothesis, best first."""
    words: tuple[WordPosterior, ...]
    """The best hypothesis, word by word."""


def read_summaries(path: Path) -> list[LatticeSummary]:
    """Read the file that a worker wrote for one feature shard."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        plain = json.loads(line)
        nbest = tuple((s, a, lm, words) for s, a, lm, words in plain["nbest"])
        words = tuple(WordPosterior(*fields) for fields in plain["words"])
        times = plain["audio_seconds"], plain["seconds"]
        found.append(LatticeSummary(plain["utterance"], *times, nbest, words))
    return found


def write_confidences(
    found: Mapping[str, Sequence[LatticeSummary]],
    references: Mapping[str, Mapping[str, str]],
    tune_on: Sequence[str],
    out: Path,
) -> dict[str, float]:
    """Calibrate the posteriors on some splits; write CTM files and a table of calibration errors.

    Args:
      found: the utterances of each split.
      references: transcripts by split and utterance.
      tune_on: the splits on which the calibration is fitted.
      out: the folder to write, see `write_nbest_and_ctm`.

    Returns:
      The expected calibration error by split.
    """
    scored = {split: _correctness(found[split], references[split]) for split in found}
    posteriors = [p for split in tune_on for p in scored[split][0]]
    correct = [right for split in tune_on for right in scored[split][1]]
    calibration = Calibration.fit(posteriors, correct)
    calibration.save(out / "calibration.json")
    lines = ["split\twords\tcorrect\tposterior_ece\tposterior_nce\tece\tnce\tcalibrated_on"]
    errors = {}
    for split, (raw, right) in scored.items():
        calibrated = calibration(raw)
        errors[f"ece {split}"] = calibration_error(calibrated, right)
        numbers = [sum(right) / max(len(right), 1)]
        for values in (raw, calibrated):
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


def _correctness(
    found: Sequence[LatticeSummary], references: Mapping[str, str]
) -> tuple[list[float], list[bool]]:
    """Return the posterior of every recognised word, and whether each word is right."""
    posteriors, correct = [], []
    for one in found:
        posteriors += [word.posterior for word in one.words]
        correct += right_words(references[one.utterance], [word.word for word in one.words])
    return posteriors, correct


def right_words(reference: str, words: Sequence[str]) -> list[bool]:
    """Whether each of the recognised words is right, aligned with the reference."""
    pairs = align(reference.split(), list(words))
    return [ref == hyp for ref, hyp in pairs if hyp is not None]
