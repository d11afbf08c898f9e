"""Self-training: pseudo-labels from a trained system, of the most confident utterances (C13)."""

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.align.corpus import CorpusAlignConfig, align_corpus
from toolkit.align.scorer import ScoredUtterance, Scorer, map_scored_shards, map_utterances
from toolkit.align.store import AlignmentStore, OffsetAlignments
from toolkit.decode.search import Decoder, last_lattice, load_once
from toolkit.decode.words import Calibration, word_confidences
from toolkit.features.low_frame_rate import LOW_RATE_FACTOR
from toolkit.features.store import FeatureStore
from toolkit.fsa.lattice import Weights
from toolkit.fsa.nbest import sampled_words
from toolkit.hmm.senones import Senones
from toolkit.lang.tables import SymbolTable
from toolkit.models.scorer import NeuralScorer
from toolkit.storage.files import write_atomically
from toolkit.train.errors import TrainingDataError

if TYPE_CHECKING:
    from lhotse.cut import MonoCut

TEXT = "text"
TABLE = "confidence.tsv"


@dataclass(frozen=True)
class SelfTrainingConfig:
    """Selection of the recognised utterances."""

    share: float = 0.5
    """Share of the frames that is kept, of the most confident utterances; 1 for all utterances that
    have a word."""
    threshold: float = 0.0
    """Lowest confidence that is kept, 0 to 1; an utterance's is the mean of its words', about the
    share of correct words."""
    samples: int = 100
    """Number of paths sampled from a lattice for the confidences."""
    align: CorpusAlignConfig = CorpusAlignConfig(max_failed=0.5)
    """Alignment of the recognised words."""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share is {self.share}, needs to be above 0 and at most 1")
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"threshold is {self.threshold}, needs to be from 0 to 1")
        if self.samples < 1:
            raise ValueError(f"samples is {self.samples}, needs to be at least 1")


@dataclass(frozen=True)
class Recognised:
    """A recognised utterance."""

    utterance: str
    """Its id."""
    frames: int
    """Number of raw frames."""
    text: str
    """Recognised words; empty if there are none."""
    confidence: float
    """Mean of the words' confidences; 0 without words."""


class RecognisedStore(FeatureStore):
    """The utterances of a feature store that have a recognised text, which is their transcript.

    Args:
      path: of the feature store.
      texts: recognised texts by utterance.
    """

    def __init__(self, path: Path, texts: Mapping[str, str]) -> None:
        super().__init__(path)
        self._texts = dict(texts)
        self.shards = [[name for name in shard if name in texts] for shard in self.shards]

    def cut(self, name: str) -> "MonoCut":
        """Read the cut of an utterance, with the recognised text."""
        cut = super().cut(name)
        supervision = replace(cut.supervisions[0], text=self._texts[name])
        return replace(cut, supervisions=[supervision])


@dataclass
class RecognisedScorer(NeuralScorer):
    """Scores of a neural model for the selected utterances."""

    texts: Path = Path(TEXT)
    """File of the selected texts."""

    @cached_property
    def store(self) -> RecognisedStore:
        """See `RecognisedStore`."""
        return RecognisedStore(self.features, read_texts(self.texts))


def recognise_and_align(
    model: Path,
    normaliser: Path,
    features: Path,
    decoder: Decoder,
    tuned: Path,
    lang: Path,
    senones: Senones,
    config: SelfTrainingConfig,
    out: Path,
    jobs: int,
    calibration: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    device: str = "cpu",
) -> dict[str, float]:
    """Recognise unlabelled data, select the most confident utterances, and align them.

    No transcript of the data is read. `self_labelled` opens the result for training.

    Args:
      model: the folder of the recognising network, with priors.
      normaliser: the file of its features' normaliser.
      features: the feature store of the unlabelled data.
      decoder: graph and search; the lattices of its last pass are used.
      tuned: `tuned.json` of that pass, tuned on labelled data.
      lang: the lang folder, with the lexicon.
      senones: the senones of the network.
      config: selection and alignment.
      out: gets `confidence.tsv`, a line per utterance; `text`, the selected ones; `ali.0` to
        `ali.2`, their alignments at the three offsets. Finished parts of an earlier run are kept.
      jobs: number of worker processes, without influence on the results.
      calibration: `calibration.json` of the system's word confidences; None: uncalibrated
        posteriors.
      progress: called as progress(shards done, shards); each shard counts four times.
      device: where the network computes.

    Returns:
      `utterances` and `kept`, `hours` and `kept_hours`, `confidence` (mean over the frames of those
      kept), `aligned`.

    Raises:
      TrainingDataError: no utterance is confident enough.
    """
    scorer = NeuralScorer(model, normaliser, features, device=device)
    shards = len(scorer.store.shards)
    total = (1 + LOW_RATE_FACTOR) * shards
    weights = Weights(**json.loads(tuned.read_text(encoding="utf-8")))
    decoder = decoder.at(weights.acoustic_scale)
    work = _Recogniser(decoder, weights, config.samples, calibration, out / "recognised")
    found: list[Recognised] = []

    def report(done: int, _: int, before: int = 0) -> None:
        progress(before + done, total)

    for path in map_scored_shards(work, scorer, jobs, "recognise", report):
        lines = path.read_text(encoding="utf-8").splitlines()
        found += [Recognised(**json.loads(line)) for line in lines]
    kept = most_confident(found, config)
    write_selection(found, kept, out)
    aligned = 0.0
    for offset in range(LOW_RATE_FACTOR):
        own = RecognisedScorer(model, normaliser, features, offset, device=device, texts=out / TEXT)
        folder = out / f"ali.{offset}"
        folder.mkdir(parents=True, exist_ok=True)
        further = partial(report, before=(1 + offset) * shards)
        counts = align_corpus(own, senones, lang, config.align, folder, jobs, further)
        aligned = counts["aligned"]
    hour = 3600e3 / scorer.store.manifest["frontend"]["frame_shift_ms"]
    frames = sum(one.frames for one in kept)
    return {
        "utterances": len(found),
        "kept": len(kept),
        "hours": sum(one.frames for one in found) / hour,
        "kept_hours": frames / hour,
        "confidence": sum(one.frames * one.confidence for one in kept) / frames,
        "aligned": aligned,
    }


def self_labelled(
    features: Path, out: Path, senones: Senones
) -> tuple[RecognisedStore, OffsetAlignments]:
    """Open the results of `recognise_and_align` in `out` as stores for `train_cross_entropy`.

    Train together with labelled data: `train_cross_entropy([labelled, store], [targets,
    alignments], ...)`; pass `valid`, so that accuracy is measured on transcripts and not on
    recognised text.

    Args:
      features: the feature store of the unlabelled data.
      out: output folder of `recognise_and_align`.
      senones: the senones of the network.
    """
    stores = [AlignmentStore(out / f"ali.{offset}") for offset in range(LOW_RATE_FACTOR)]
    return RecognisedStore(features, read_texts(out / TEXT)), OffsetAlignments(stores, senones)


def most_confident(found: Sequence[Recognised], config: SelfTrainingConfig) -> list[Recognised]:
    """Select the most confident utterances that have words, until they make up the share of frames.

    The result has the order given. A confidence of 1, if all sampled paths agree, is common: a good
    recogniser has it for half of the utterances. Ties are broken by the checksum of the id.

    Raises:
      TrainingDataError: no utterance is confident enough.
    """
    eligible = [one for one in found if one.text and one.confidence >= config.threshold]
    if not eligible:
        raise TrainingDataError(
            f"none of {len(found)} utterances was recognised with a confidence of "
            f"{config.threshold:g}: lower the threshold"
        )
    limit = config.share * sum(one.frames for one in found)
    ranked = sorted(eligible, key=lambda one: (-one.confidence, zlib.crc32(one.utterance.encode())))
    before = accumulate((one.frames for one in ranked), initial=0)
    taken = {one.utterance for one, frames in zip(ranked, before, strict=False) if frames < limit}
    return [one for one in eligible if one.utterance in taken]


@dataclass(frozen=True)
class _Recogniser:
    """Recognises a shard of features; passed to worker processes."""

    decoder: Decoder
    weights: Weights
    samples: int
    calibration: Path | None
    out: Path

    def __call__(self, scorer: Scorer, threads: int, shard: tuple[int, Sequence[str]]) -> Path:
        """Write a line per utterance; a file of an earlier run is kept."""
        number, ids = shard
        path = self.out / f"recognised.{number:06d}.jsonl"
        if path.exists():
            return path
        table = SymbolTable.read(self.decoder.words)
        calibrated = Calibration() if self.calibration is None else None
        calibrated = calibrated or Calibration.load(self.calibration)
        load_once(self.decoder)

        def recognise(scored: ScoredUtterance) -> str:
            words, posteriors = self._words(scored)
            confidences = calibrated(posteriors)
            plain = {
                "utterance": scored.utterance,
                "frames": scorer.store.num_frames(scored.utterance),
                "text": " ".join(map(table.symbol, words)),
                "confidence": round(sum(confidences) / len(confidences), 6) if confidences else 0.0,
            }
            return json.dumps(plain) + "\n"

        write_atomically(path, "".join(map_utterances(recognise, scorer, ids, threads)))
        return path

    def _words(self, scored: ScoredUtterance) -> tuple[Sequence[int], list[float]]:
        """Return the best words and their posteriors; empty if the search finds no path."""
        lattice = last_lattice(scored, self.decoder)
        if lattice is None:
            return (), []
        words = lattice.best_words(self.weights)
        if not words:
            return (), []
        return words, word_confidences(words, sampled_words(lattice, self.weights, self.samples))


def write_selection(found: Sequence[Recognised], kept: Sequence[Recognised], out: Path) -> None:
    """Write `confidence.tsv`, a line per utterance, and `text`, the words of the selected ones."""
    names = {one.utterance for one in kept}
    lines = ["utterance\tframes\tconfidence\tkept\ttext\n"]
    lines += [
        f"{one.utterance}\t{one.frames}\t{one.confidence:.4f}\t{int(one.utterance in names)}\t"
        f"{one.text}\n"
        for one in found
    ]
    write_atomically(out / TABLE, "".join(lines))
    write_atomically(out / TEXT, "".join(f"{one.utterance} {one.text}\n" for one in kept))


def read_texts(path: Path) -> dict[str, str]:
    """Read the `text` of `write_selection`: words by utterance."""
    lines = path.read_text(encoding="utf-8").split("\n")  # alone: words may have other line ends
    return {name: text for name, _, text in (line.partition(" ") for line in lines if line)}
