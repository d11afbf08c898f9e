"""Recognised words and phones of unlabelled speech: self-training, semi-supervised LF-MMI (C13)."""

import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from toolkit.align.config import AlignConfig
from toolkit.align.corpus import align_at_offsets
from toolkit.align.force_align import TranscriptGraphs, force_align
from toolkit.align.scorer import ScoredUtterance, Scorer, map_scored_shards, map_utterances
from toolkit.align.store import OffsetAlignments
from toolkit.decode.search import Decoder, DecoderFiles, open_decoder
from toolkit.decode.words import Calibration, word_confidences
from toolkit.errors import ToolkitError
from toolkit.features.config import LOW_RATE_FACTOR
from toolkit.features.shards import FeatureStore, ShardStore, shard_writer
from toolkit.fsa.lattice import Weights
from toolkit.fsa.nbest import sampled_words
from toolkit.fsa.numerator import PhoneAlternatives, PhoneTimes
from toolkit.hmm.senones import Senones
from toolkit.lang.lang import Lang
from toolkit.models.scorer import NeuralScorer
from toolkit.ssl.config import RecognisedPhonesConfig, SelfTrainingConfig
from toolkit.storage.files import write_atomically
from toolkit.train.errors import TrainingDataError

if TYPE_CHECKING:
    from lhotse.cut import MonoCut

TEXT = "text"
TABLE = "confidence.tsv"
ADVICE = "recognise the utterances again"


@dataclass(frozen=True)
class Recognised:
    """A recognised utterance."""

    utterance: str
    """Id of the utterance."""
    frames: int
    """Number of raw frames."""
    text: str
    """Recognised words; empty if there are none."""
    confidence: float
    """Mean of the words' confidences; 0 if there are no words."""


class RecognisedStore(FeatureStore):
    """A feature store limited to utterances with recognised text, which serves as transcript.

    Args:
      path: path of the feature store.
      texts: recognised texts by utterance.
    """

    def __init__(self, path: Path, texts: Mapping[str, str]) -> None:
        super().__init__(path)
        self._texts = dict(texts)
        self.shards = [[name for name in shard if name in texts] for shard in self.shards]

    def cut(self, name: str) -> "MonoCut":
        """Read the cut of an utterance, with the recognised text as its transcript."""
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
        """The utterances with selected texts; see `NeuralScorer.store`."""
        return RecognisedStore(self.features, read_texts(self.texts))


def recognise_and_align(
    model: Path,
    normaliser: Path,
    features: Path,
    decoder: DecoderFiles,
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
      model: the folder of the network that recognises, with priors.
      normaliser: the file of the normaliser of its features.
      features: the feature store of the unlabelled data.
      decoder: graph and search; the lattices of its last pass are used.
      tuned: `tuned.json`, the weights of that pass, tuned on labelled data.
      lang: the lang folder, with the lexicon.
      senones: the senones of the network.
      config: selection and alignment.
      out: output folder. It receives `confidence.tsv`, a line per utterance; `text`, the words of
        the selected utterances; and `ali.0` to `ali.2`, their alignments at the three offsets.
        Finished parts of an earlier run are kept.
      jobs: number of worker processes; it does not affect the results.
      calibration: `calibration.json` of the system's word confidences; None: uncalibrated
        posteriors.
      progress: called as progress(shards done, shards). Each shard counts four times: it is
        recognised once and aligned at three offsets.
      device: where the network computes.

    Returns:
      `utterances` and `hours` of all data; `kept` and `kept_hours`, those selected; their mean
      `confidence`, weighted by frames; `aligned`, the number of utterances aligned.

    Raises:
      TrainingDataError: no utterance has words and is confident enough.
    """
    scorer = NeuralScorer(model, normaliser, features, device=device)
    shards = len(scorer.store.shards)
    total = (1 + LOW_RATE_FACTOR) * shards  # recognised once, aligned at each offset
    weights = Weights.load(tuned)
    decoder = decoder.at(weights.acoustic_scale)
    recogniser = _WordRecogniser(decoder, weights, config.samples, calibration, out / "recognised")
    recognised: list[Recognised] = []

    def report(done: int, _: int, shards_done: int = 0) -> None:
        progress(shards_done + done, total)

    # 1. Recognise all utterances, shard by shard.
    for path in map_scored_shards(recogniser, scorer, jobs, "recognise", report):
        lines = path.read_text(encoding="utf-8").splitlines()
        recognised += [Recognised(**json.loads(line)) for line in lines]
    # 2. Select the most confident ones.
    selected = most_confident(recognised, config)
    write_selection(recognised, selected, out)
    # 3. Align their recognised words, at each offset of the low frame rate.
    scorers = [
        RecognisedScorer(model, normaliser, features, offset, device=device, texts=out / TEXT)
        for offset in range(LOW_RATE_FACTOR)
    ]
    report_aligned = partial(report, shards_done=shards)
    counts = align_at_offsets(scorers, senones, lang, config.align, out, jobs, report_aligned)
    # `Recognised.frames` are raw frames; this is their number per hour.
    hour = 3600e3 / scorer.store.manifest["frontend"]["frame_shift_ms"]
    frames = sum(u.frames for u in selected)
    return {
        "utterances": len(recognised),
        "kept": len(selected),
        "hours": sum(u.frames for u in recognised) / hour,
        "kept_hours": frames / hour,
        "confidence": sum(u.frames * u.confidence for u in selected) / frames,
        "aligned": counts["aligned"],
    }


def self_labelled(
    features: Path, out: Path, senones: Senones
) -> tuple[RecognisedStore, OffsetAlignments]:
    """Open the results of `recognise_and_align` in `out` as stores for `train_cross_entropy`.

    Train on them together with labelled data: `train_cross_entropy([labelled, store], [targets,
    alignments], ...)`. Pass `valid`, so that accuracy is measured on transcripts and not on
    recognised text.

    Args:
      features: the feature store of the unlabelled data.
      out: output folder of `recognise_and_align`.
      senones: the senones of the network.
    """
    store = RecognisedStore(features, read_texts(out / TEXT))
    return store, OffsetAlignments.open(out, senones)


def most_confident(
    recognised: Sequence[Recognised], config: SelfTrainingConfig
) -> list[Recognised]:
    """Select the most confident utterances with words, until they have the share of the frames.

    The result keeps the order of `recognised`. An utterance's confidence is 1 if all its sampled
    paths agree. With a good recogniser this holds for half of the utterances, so ties are broken by
    a checksum of the ids.

    Raises:
      TrainingDataError: no utterance has words and is confident enough.
    """
    eligible = [u for u in recognised if u.text and u.confidence >= config.threshold]
    if not eligible:
        raise TrainingDataError(
            f"none of the {len(recognised)} utterances was recognised with a confidence of at "
            f"least {config.threshold:g}: lower the threshold"
        )
    # From the highest confidence down, until the selected ones have share * (all frames)
    limit = config.share * sum(u.frames for u in recognised)
    ranked = sorted(eligible, key=lambda u: (-u.confidence, zlib.crc32(u.utterance.encode())))
    frames_before = accumulate((u.frames for u in ranked), initial=0)
    selected = {
        u.utterance for u, frames in zip(ranked, frames_before, strict=False) if frames < limit
    }
    return [u for u in eligible if u.utterance in selected]


@dataclass(frozen=True)
class _WordRecogniser:
    """Recogniser of the words of a shard; passed to worker processes."""

    decoder: DecoderFiles
    weights: Weights
    samples: int
    calibration: Path | None
    out: Path

    def __call__(self, scorer: Scorer, threads: int, shard: tuple[int, Sequence[str]]) -> Path:
        """Write the shard's `Recognised` as JSON lines, unless an earlier run has done so.

        Returns:
          Path of the file.
        """
        number, ids = shard
        path = self.out / f"recognised.{number:06d}.jsonl"
        if path.exists():
            return path
        calibrated = Calibration() if self.calibration is None else None
        calibrated = calibrated or Calibration.load(self.calibration)
        decoder = open_decoder(self.decoder)

        def recognise(scored: ScoredUtterance) -> str:
            words, posteriors = self._words(decoder, scored)
            confidences = calibrated(posteriors)
            record = {
                "utterance": scored.utterance,
                "frames": scorer.store.num_frames(scored.utterance),
                "text": decoder.text(words),
                "confidence": round(sum(confidences) / len(confidences), 6) if confidences else 0.0,
            }
            return json.dumps(record) + "\n"

        write_atomically(path, "".join(map_utterances(recognise, scorer, ids, threads)))
        return path

    def _words(
        self, decoder: Decoder, scored: ScoredUtterance
    ) -> tuple[Sequence[int], list[float]]:
        """Return the ids and posteriors of the best words; both empty if the search fails."""
        lattice = decoder.search(scored.log_likelihoods).last_lattice
        if lattice is None:
            return (), []
        words = lattice.best_words(self.weights)
        if not words:
            return (), []
        # A word's posterior is the share of sampled paths that contain it.
        return words, word_confidences(words, sampled_words(lattice, self.weights, self.samples))


def write_selection(
    recognised: Sequence[Recognised], selected: Sequence[Recognised], out: Path
) -> None:
    """Write `confidence.tsv`, a line per utterance, and `text`, the words of the selected ones."""
    names = {u.utterance for u in selected}
    lines = ["utterance\tframes\tconfidence\tkept\ttext\n"]
    lines += [
        f"{u.utterance}\t{u.frames}\t{u.confidence:.4f}\t{int(u.utterance in names)}\t{u.text}\n"
        for u in recognised
    ]
    write_atomically(out / TABLE, "".join(lines))
    write_atomically(out / TEXT, "".join(f"{u.utterance} {u.text}\n" for u in selected))


def read_texts(path: Path) -> dict[str, str]:
    """Read the file `text` of `write_selection`: words by utterance."""
    # Only a newline ends a line: words may contain the other line ends of `str.splitlines`.
    lines = path.read_text(encoding="utf-8").split("\n")
    return {name: text for name, _, text in (line.partition(" ") for line in lines if line)}


class DamagedPhonesError(ToolkitError):
    """Stored phones that cannot be read."""


class RecognisedPhones:
    """The phones that `recognise_phones` wrote to a folder, as `phones.NNNNNN.tar`.

    Each file holds an int32 matrix [K, 3] per utterance, where K counts the phones of all
    alternatives. A row describes one phone of an alternative:

    - how often the alternative was drawn, the same in all of its rows;
    - the phone's id;
    - the 10 ms frame in which it begins.

    The alternatives follow each other; each begins in frame 0.

    Args:
      folder: the folder.
      features: features of the utterances, for their lengths.
      samples: the number of paths drawn per utterance.
    """

    transcribed = False

    def __init__(self, folder: Path, features: FeatureStore, samples: int) -> None:
        self._rows = ShardStore(folder, "phones", _to_rows, DamagedPhonesError, ADVICE)
        self._features = features
        self._samples = samples

    @property
    def ids(self) -> list[str]:
        """The utterances for which phones are stored."""
        return self._rows.ids

    def load(self, utterance: str) -> PhoneAlternatives:
        """Read an utterance's phone alternatives and their posteriors."""
        # An alternative begins wherever a phone begins in frame 0.
        rows = self._rows.load(utterance)
        starts = (rows[:, 2] == 0).nonzero()[0]
        frames, ends = self._features.num_frames(utterance), [*starts[1:], len(rows)]
        parts = [rows[start:end] for start, end in zip(starts, ends, strict=True)]
        times = tuple(PhoneTimes(part[:, 1], part[:, 2], frames) for part in parts)
        return PhoneAlternatives(times, rows[starts, 0] / self._samples)


def _to_rows(array: np.ndarray) -> np.ndarray:
    """Check the stored rows (times drawn, phone, first frame) of an utterance's alternatives."""
    if array.dtype != np.int32 or array.ndim != 2 or array.shape[1] != 3:
        raise ValueError(f"an array {array.dtype} {list(array.shape)} instead of int32 [K, 3]")
    # The first row begins an alternative; each was drawn at least once; phone ids start at 1.
    starts = (array[:, 2] == 0).nonzero()[0]
    least = array.min(axis=0, initial=2**31 - 1)
    if not len(starts) or starts[0] or (least < (1, 1, 0)).any():
        raise ValueError("a row has too small a value, or the first phone is not in frame 0")
    return array


def recognise_phones(
    model: Path,
    normaliser: Path,
    features: Path,
    decoder: DecoderFiles,
    tuned: Path,
    lang: Path,
    senones: Senones,
    config: RecognisedPhonesConfig,
    out: Path,
    jobs: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
    device: str = "cpu",
) -> dict[str, float]:
    """Recognise unlabelled speech; write phones and times of the likeliest word sequences.

    Word sequences are drawn from the lattice of each utterance in proportion to their posteriors;
    the phones of each are those of its forced alignment by the same network. No transcript is read.

    Args:
      model: the folder of the network that recognises, with priors.
      normaliser: the file of the normaliser of its features.
      features: the feature store of the unlabelled speech.
      decoder: graph and search; the lattices of its last pass are used.
      tuned: `tuned.json`, the weights of that pass.
      lang: the lang folder, with the lexicon.
      senones: the senones of the network.
      config: how much of a lattice is kept.
      out: folder for the files that `RecognisedPhones` reads; those of an earlier run are kept.
      jobs: number of worker processes; it does not affect the results.
      progress: called with (shards done, shards).
      device: where the network computes.

    Returns:
      `utterances`, the number of all; `recognised`, of those with phones, and their `hours`;
      `alternatives`, their mean number per recognised utterance; `best`, the mean posterior of the
      likeliest alternative.

    Raises:
      TrainingDataError: nothing was recognised.
    """
    scorer = NeuralScorer(model, normaliser, features, device=device)
    weights = Weights.load(tuned)
    recogniser = _PhoneRecogniser(
        decoder.at(weights.acoustic_scale), weights, lang, senones, config, out
    )
    out.mkdir(parents=True, exist_ok=True)
    for _ in map_scored_shards(recogniser, scorer, jobs, "recognise", progress):
        pass
    store = FeatureStore(features)
    phones = RecognisedPhones(out, store, config.samples)
    if not phones.ids:
        raise TrainingDataError(
            f"none of the {len(store.ids)} utterances in {features} was recognised: check that "
            f"the network {model} was trained on the same language and kind of speech"
        )
    alternatives = [phones.load(name) for name in phones.ids]
    return {
        "utterances": len(store.ids),
        "recognised": len(alternatives),
        "hours": sum(a.frames for a in alternatives) * scorer.frame_shift / LOW_RATE_FACTOR / 3600,
        "alternatives": sum(len(a.times) for a in alternatives) / len(alternatives),
        "best": sum(float(a.weights[0]) for a in alternatives) / len(alternatives),
    }


@dataclass(frozen=True)
class _PhoneRecogniser:
    """Recogniser of the phones of a shard; passed to worker processes."""

    decoder: DecoderFiles
    weights: Weights
    lang: Path
    senones: Senones
    config: RecognisedPhonesConfig
    out: Path

    def __call__(self, scorer: Scorer, threads: int, shard: tuple[int, Sequence[str]]) -> Path:
        """Write the phones of each utterance that has any, unless an earlier run has done so.

        Returns:
          Path of the file.
        """
        number, ids = shard
        path = self.out / f"phones.{number:06d}.tar"
        if path.exists():
            return path
        compiler = TranscriptGraphs(Lang.load(self.lang), self.senones)
        decoder = open_decoder(self.decoder)

        def recognise(scored: ScoredUtterance) -> list[tuple[int, int, int]]:
            return list(self._phones(decoder, scored, compiler))

        rows_by_utterance = zip(ids, map_utterances(recognise, scorer, ids, threads), strict=True)
        with shard_writer(path) as writer:
            for name, rows in sorted(rows_by_utterance):
                if rows:
                    writer.add_array(name, np.array(rows, dtype=np.int32))
        return path

    def _phones(
        self, decoder: Decoder, scored: ScoredUtterance, compiler: TranscriptGraphs
    ) -> Iterator[tuple[int, int, int]]:
        """Yield the rows of an utterance's matrix; none if search or alignment finds no path."""
        lattice = decoder.search(scored.log_likelihoods).last_lattice
        if lattice is None:
            return
        # 1. Draw word sequences by their posteriors, and keep the most frequent ones.
        drawn = Counter(sampled_words(lattice, self.weights, self.config.samples))
        alternatives = drawn.most_common(self.config.alternatives)
        # 2. Align each with the utterance.
        symbol = compiler.lang.words.symbol
        graphs = [compiler.compile([symbol(word) for word in words]) for words, _ in alternatives]
        # [T, P] by graph: the scores of its own pdfs alone
        columns: list[Tensor] = [scored.log_likelihoods[:, graph.pdfs] for graph in graphs]
        decoding = self.decoder.config
        config = AlignConfig(decoding.acoustic_scale, decoding.beam.search)
        aligned = force_align(columns, graphs, self.senones, config)
        # 3. Merge alternatives with the same phones and times: different words may sound alike.
        alike: Counter[tuple[tuple[int, int], ...]] = Counter()
        for (_, count), alignment in zip(alternatives, aligned, strict=True):
            if alignment is not None:
                begins = [LOW_RATE_FACTOR * frame for frame in alignment.phone_frames]
                alike[tuple(zip(alignment.phones, begins, strict=True))] += count
        for phones, count in alike.most_common():
            yield from ((count, phone, begin) for phone, begin in phones)
