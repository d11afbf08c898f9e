"""Self-training: transcripts that a trained system recognised, the surest of them learnt (C13)."""

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.align.corpus import CorpusAlignConfig, align_corpus
from toolkit.align.store import AlignmentStore, OffsetAlignments
from toolkit.decode.confidence import Calibration, word_confidences
from toolkit.decode.first_pass import Decoder, search
from toolkit.features.lfr import LOW_RATE_FACTOR
from toolkit.features.store import FeatureStore, map_shards
from toolkit.fsa.lattice import ScoredLattice, Weights
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
    """What is kept of what was recognised."""

    share: float = 0.5
    """Part of the frames that is kept, those of the surest utterances; 1 for all that have a
    word."""
    threshold: float = 0.0
    """Lowest confidence that is kept, 0 to 1; an utterance's is the mean of its words', about the
    share of them that are right."""
    samples: int = 100
    """Paths drawn from a lattice for the confidences."""
    align: CorpusAlignConfig = CorpusAlignConfig(max_failed=0.5)
    """How the recognised words are aligned."""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share is {self.share}, needs to be above 0 and at most 1")
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"threshold is {self.threshold}, needs to be from 0 to 1")
        if self.samples < 1:
            raise ValueError(f"samples is {self.samples}, needs to be at least 1")


@dataclass(frozen=True)
class Recognised:
    """One utterance."""

    utterance: str
    """Its id."""
    frames: int
    """Raw ones."""
    text: str
    """Words; empty where none was found."""
    confidence: float
    """Mean of the words' confidences; 0 without words."""


class RecognisedStore(FeatureStore):
    """The utterances of a feature store that have a recognised text, with it as transcript.

    Args:
      path: of the feature store.
      texts: by utterance.
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
    """A neural model on the kept utterances."""

    texts: Path = Path(TEXT)
    """The file of the kept texts."""

    @cached_property
    def store(self) -> RecognisedStore:
        """See `RecognisedStore`."""
        return RecognisedStore(self.features, _read_texts(self.texts))


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
) -> dict[str, float]:
    """Recognise unlabelled data, keep the surest utterances, align them with their words.

    No transcript of the data is read. `self_labelled` gives what training takes.

    Args:
      model: the folder of the recognising network, with priors.
      normaliser: the file of its features' normaliser.
      features: the feature store of the unlabelled data.
      decoder: graph and search; the lattices of its last pass count.
      tuned: `tuned.json` of that pass, of labelled data.
      lang: the folder of the lexicon.
      senones: of the network.
      config: what is kept.
      out: gets `confidence.tsv`, a line per utterance; `text`, the kept ones; `ali.0` to `ali.2`,
        their alignments at the three offsets. What an earlier run finished of it is kept.
      jobs: worker processes; results do not depend on them.
      calibration: `calibration.json` of the system's word confidences; None: posteriors as they
        are.
      progress: told (shards done, shards), each shard counting four times.

    Returns:
      `utterances` and `kept`, `hours` and `kept_hours`, `confidence` (of those kept, the mean by
      frames), `aligned`.

    Raises:
      TrainingDataError: nothing is kept.
    """
    scorer = NeuralScorer(model, normaliser, features)
    shards = len(scorer.store.shards)
    total = (1 + LOW_RATE_FACTOR) * shards
    weights = Weights(**json.loads(tuned.read_text(encoding="utf-8")))
    work = _Recogniser(scorer, decoder, weights, config.samples, calibration, out / "recognised")
    found: list[Recognised] = []

    def told(done: int, _: int, before: int = 0) -> None:
        progress(before + done, total)

    for path in map_shards(work, scorer.store, jobs, "recognise", told):
        lines = path.read_text(encoding="utf-8").splitlines()
        found += [Recognised(**json.loads(line)) for line in lines]
    kept = surest(found, config)
    _write(found, kept, out)
    aligned = 0.0
    for offset in range(LOW_RATE_FACTOR):
        own = RecognisedScorer(model, normaliser, features, offset, texts=out / TEXT)
        folder = out / f"ali.{offset}"
        folder.mkdir(parents=True, exist_ok=True)
        further = partial(told, before=(1 + offset) * shards)
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
    """Open what `recognise_and_align` left in `out`, as `train_cross_entropy` takes it.

    Beside labelled stores: `train_cross_entropy([labelled, store], [targets, alignments], ...)`;
    give it `valid`, so that accuracy is measured on transcripts and not on what was recognised.

    Args:
      features: the feature store of the unlabelled data.
      out: of `recognise_and_align`.
      senones: of the network.
    """
    stores = [AlignmentStore(out / f"ali.{offset}") for offset in range(LOW_RATE_FACTOR)]
    return RecognisedStore(features, _read_texts(out / TEXT)), OffsetAlignments(stores, senones)


def surest(found: Sequence[Recognised], config: SelfTrainingConfig) -> list[Recognised]:
    """Choose utterances that have words, in the order given, until they make up the share.

    Sampled paths that all agree give a confidence of 1, which a good recogniser has for half of the
    utterances: among equals the checksum of the id decides.

    Raises:
      TrainingDataError: none is sure enough.
    """
    able = [one for one in found if one.text and one.confidence >= config.threshold]
    if not able:
        raise TrainingDataError(
            f"none of {len(found)} utterances was recognised with a confidence of "
            f"{config.threshold:g}: lower the threshold"
        )
    wanted = config.share * sum(one.frames for one in found)
    ranked = sorted(able, key=lambda one: (-one.confidence, zlib.crc32(one.utterance.encode())))
    before = accumulate((one.frames for one in ranked), initial=0)
    taken = {one.utterance for one, frames in zip(ranked, before, strict=False) if frames < wanted}
    return [one for one in able if one.utterance in taken]


@dataclass(frozen=True)
class _Recogniser:
    """Recognises a shard of features; passed to worker processes."""

    scorer: NeuralScorer
    decoder: Decoder
    weights: Weights
    samples: int
    calibration: Path | None
    out: Path

    def __call__(self, shard: tuple[int, Sequence[str]]) -> Path:
        """Write a line per utterance; a shard of an earlier run is kept."""
        number, ids = shard
        path = self.out / f"recognised.{number:06d}.jsonl"
        if path.exists():
            return path
        table = SymbolTable.read(self.decoder.words)
        calibrated = Calibration() if self.calibration is None else None
        calibrated = calibrated or Calibration.load(self.calibration)
        lines = []
        for utterance in ids:
            words, posteriors = self._words(utterance)
            sure = calibrated(posteriors)
            plain = {
                "utterance": utterance,
                "frames": self.scorer.store.num_frames(utterance),
                "text": " ".join(map(table.symbol, words)),
                "confidence": round(sum(sure) / len(sure), 6) if sure else 0.0,
            }
            lines.append(json.dumps(plain) + "\n")
        write_atomically(path, "".join(lines))
        return path

    def _words(self, utterance: str) -> tuple[Sequence[int], list[float]]:
        """The best words and their posteriors; none where the search finds no path."""
        found = search(utterance, self.scorer, self.decoder)
        if not found.lattices:
            return (), []
        scale = self.decoder.config.acoustic_scale
        lattice = ScoredLattice(found.lattices[-1], found.scores, scale)
        words = lattice.best_words(self.weights)
        if not words:
            return (), []
        return words, word_confidences(words, sampled_words(lattice, self.weights, self.samples))


def _write(found: Sequence[Recognised], kept: Sequence[Recognised], out: Path) -> None:
    names = {one.utterance for one in kept}
    lines = ["utterance\tframes\tconfidence\tkept\ttext\n"]
    lines += [
        f"{one.utterance}\t{one.frames}\t{one.confidence:.4f}\t{int(one.utterance in names)}\t"
        f"{one.text}\n"
        for one in found
    ]
    write_atomically(out / TABLE, "".join(lines))
    write_atomically(out / TEXT, "".join(f"{one.utterance} {one.text}\n" for one in kept))


def _read_texts(path: Path) -> dict[str, str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return {name: text for name, _, text in (line.partition(" ") for line in lines)}
