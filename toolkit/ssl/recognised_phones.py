"""Recognised phones of unlabelled speech, for semi-supervised lattice-free MMI (C13)."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from toolkit.align.force_align import AlignConfig, TranscriptGraphs, force_align
from toolkit.align.scorer import ScoredUtterance, Scorer, map_scored_shards, map_utterances
from toolkit.decode.search import Decoder, last_lattice, load_once
from toolkit.errors import ToolkitError
from toolkit.features.low_frame_rate import LOW_RATE_FACTOR
from toolkit.features.store import FeatureStore
from toolkit.fsa.lattice import Weights
from toolkit.fsa.nbest import sampled_words
from toolkit.fsa.numerator import PhoneAlternatives, PhoneTimes
from toolkit.hmm.senones import Senones
from toolkit.lang.lang import Lang
from toolkit.models.scorer import NeuralScorer
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import check_tensor, files_of_tensors, reading
from toolkit.train.errors import TrainingDataError

ADVICE = "recognise the utterances again"


class DamagedPhonesError(ToolkitError):
    """Stored phones that cannot be read."""


@dataclass(frozen=True)
class RecognisedPhonesConfig:
    """How much of a lattice of recognised speech training sees."""

    samples: int = 50
    """Number of paths drawn from a lattice in proportion to their posteriors."""
    alternatives: int = 1
    """Most word sequences that are kept of an utterance, those drawn most often. 1: the likeliest
    words alone, as if they had been said; with 8 the far-field demo's student deletes more words
    and makes 21 % more errors."""

    def __post_init__(self) -> None:
        for name in ("samples", "alternatives"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, needs to be at least 1")


class RecognisedPhones:
    """A folder of `phones.NNNNNN.safetensors`, in which `recognise_phones` has written.

    Each holds an int32 matrix [K, 3] by utterance: the phones of its alternatives, one after the
    other, each with how often the alternative was drawn, its id, and the 10 ms frame in which it
    begins; the first of an alternative begins in frame 0.

    Args:
      folder: the folder.
      features: of the utterances, for their lengths.
      samples: the number of paths drawn.
    """

    transcribed = False

    def __init__(self, folder: Path, features: FeatureStore, samples: int) -> None:
        self._folder = Path(folder)
        self._features = features
        self._samples = samples

    @cached_property
    def _shard_of(self) -> dict[str, Path]:
        paths = sorted(self._folder.glob("phones.*.safetensors"))
        return files_of_tensors(paths, DamagedPhonesError, ADVICE)

    @property
    def ids(self) -> list[str]:
        """The utterances in which something was recognised."""
        return list(self._shard_of)

    def load(self, name: str) -> PhoneAlternatives:
        """Read what may have been said in an utterance."""
        path = self._shard_of[name]
        with reading(path, DamagedPhonesError, ADVICE), safe_open(path, "pt") as file:
            check_tensor(file, name, ("I32", 2))
            rows = file.get_tensor(name).numpy()
            starts = (rows[:, 2] == 0).nonzero()[0]
            least = rows.min(axis=0, initial=2**31 - 1)
            if rows.shape[1] != 3 or not len(starts) or starts[0] or (least < (1, 1, 0)).any():
                raise ValueError(f"the phones of {name} are not those of alternatives")
        frames, ends = self._features.num_frames(name), [*starts[1:], len(rows)]
        parts = [rows[start:end] for start, end in zip(starts, ends, strict=True)]
        times = tuple(PhoneTimes(part[:, 1], part[:, 2], frames) for part in parts)
        return PhoneAlternatives(times, rows[starts, 0] / self._samples)


def recognise_phones(
    model: Path,
    normaliser: Path,
    features: Path,
    decoder: Decoder,
    tuned: Path,
    lang: Path,
    senones: Senones,
    config: RecognisedPhonesConfig,
    out: Path,
    jobs: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
    device: str = "cpu",
) -> dict[str, float]:
    """Recognise unlabelled speech, and write what phones may have been said, and when.

    Word sequences are drawn from the lattice of each utterance in proportion to their posteriors;
    the phones of each are those of its forced alignment by the same network. No transcript is read.

    Args:
      model: the folder of the recognising network, with priors.
      normaliser: the file of its features' normaliser.
      features: the feature store of the unlabelled speech.
      decoder: graph and search; the lattices of its last pass are used.
      tuned: `tuned.json` of that pass.
      lang: the lang folder, with the lexicon.
      senones: the senones of the network.
      config: how much of a lattice is kept.
      out: gets the files that `RecognisedPhones` reads; those of an earlier run are kept.
      jobs: number of worker processes, without influence on the results.
      progress: called with (shards done, shards).
      device: where the network computes.

    Returns:
      `utterances`, `recognised`, `hours` of these, `alternatives` and `best` (mean number, and mean
      posterior of the likeliest) of an utterance.

    Raises:
      TrainingDataError: nothing was recognised.
    """
    scorer = NeuralScorer(model, normaliser, features, device=device)
    weights = Weights.load(tuned)
    work = _Recogniser(decoder.at(weights.acoustic_scale), weights, lang, senones, config, out)
    out.mkdir(parents=True, exist_ok=True)
    for _ in map_scored_shards(work, scorer, jobs, "recognise", progress):
        pass
    store = FeatureStore(features)
    phones = RecognisedPhones(out, store, config.samples)
    if not phones.ids:
        raise TrainingDataError(
            f"none of the {len(store.ids)} utterances in {features} was recognised: is the network"
            f" {model} fit for them?"
        )
    found = [phones.load(name) for name in phones.ids]
    return {
        "utterances": len(store.ids),
        "recognised": len(found),
        "hours": sum(one.frames for one in found) * scorer.frame_shift / LOW_RATE_FACTOR / 3600,
        "alternatives": sum(len(one.times) for one in found) / len(found),
        "best": sum(float(one.weights[0]) for one in found) / len(found),
    }


@dataclass(frozen=True)
class _Recogniser:
    """Recognises a shard of features; passed to worker processes."""

    decoder: Decoder
    weights: Weights
    lang: Path
    senones: Senones
    config: RecognisedPhonesConfig
    out: Path

    def __call__(self, scorer: Scorer, threads: int, shard: tuple[int, Sequence[str]]) -> Path:
        """Write the phones of each utterance in which some were found."""
        number, ids = shard
        path = self.out / f"phones.{number:06d}.safetensors"
        if path.exists():
            return path
        compiler = TranscriptGraphs(Lang.load(self.lang), self.senones)
        load_once(self.decoder)

        def recognise(scored: ScoredUtterance) -> list[tuple[int, int, int]]:
            return list(self._phones(scored, compiler))

        found = zip(ids, map_utterances(recognise, scorer, ids, threads), strict=True)
        rows = {name: torch.tensor(own, dtype=torch.int32) for name, own in found if own}
        write_atomically(path, save(rows))
        return path

    def _phones(
        self, scored: ScoredUtterance, compiler: TranscriptGraphs
    ) -> Iterator[tuple[int, int, int]]:
        """The rows of an utterance's matrix; none if the search or all alignments find no path."""
        lattice = last_lattice(scored, self.decoder)
        if lattice is None:
            return
        drawn = Counter(sampled_words(lattice, self.weights, self.config.samples))
        kept = drawn.most_common(self.config.alternatives)
        symbol = compiler.lang.words.symbol
        graphs = [compiler.compile([symbol(word) for word in words]) for words, _ in kept]
        columns: list[Tensor] = [scored.log_likelihoods[:, graph.pdfs] for graph in graphs]
        decoding = self.decoder.config
        config = AlignConfig(decoding.acoustic_scale, decoding.beam.search)
        aligned = force_align(columns, graphs, self.senones, config)
        alike: Counter[tuple[tuple[int, int], ...]] = Counter()  # words may sound alike
        for (_, count), one in zip(kept, aligned, strict=True):
            if one is not None:
                begins = [LOW_RATE_FACTOR * frame for frame in one.phone_frames]
                alike[tuple(zip(one.phones, begins, strict=True))] += count
        for phones, count in alike.most_common():
            yield from ((count, phone, begin) for phone, begin in phones)
