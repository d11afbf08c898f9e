"""N-best lists, word times, confidences and word lattices of decoded splits."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from toolkit.align.scored import Scored, map_scored, map_scored_shards
from toolkit.align.scorer import Scorer
from toolkit.decode.calibrate import LatticeSummary, read_summaries, write_confidences
from toolkit.decode.decode_store import (
    Searched,
    remove_lattices,
    search_folder,
    searched_shard,
)
from toolkit.decode.first_pass import Decoder
from toolkit.decode.system import Scorers, references_of
from toolkit.decode.word_times import WordAligner
from toolkit.fsa.lattice import ScoredLattice, Weights
from toolkit.fsa.nbest import n_best
from toolkit.fsa.word_determinize import word_lattice
from toolkit.fsa.word_lattice import WordLattice
from toolkit.fsa.word_lattice_store import Decoding, word_lattice_path, write_word_lattices
from toolkit.hmm.senones import Senones
from toolkit.storage.files import write_atomically


@dataclass(frozen=True)
class NbestConfig:
    """What is extracted from each lattice."""

    count: int = 10
    """Length of the n-best lists."""

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"count is {self.count}, needs to be at least 1")


def write_nbest_and_ctm(
    scorers: Scorers,
    tune_on: Sequence[str],
    decoder: Decoder,
    tuned: Path,
    lang: Path,
    senones: Senones,
    config: NbestConfig,
    out: Path,
    jobs: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, float]:
    """Write n-best lists, word times, confidences and word lattices of every split.

    Splits are searched anew where `decode_passes` has left no lattices at the weights' scale;
    lattices that it has left in `out` are removed.

    Args:
      scorers: the acoustic model on each split.
      tune_on: the splits on which the confidences are calibrated.
      decoder: graph and search; the lattices of its last pass are used.
      tuned: `tuned.json` of that pass.
      lang: the folder of the lexicon.
      senones: those of the acoustic model, to align the words.
      config: what is extracted.
      out: the folder that gets `calibration.json`, `confidence.tsv` and, by split, `nbest.tsv`,
        `words.ctm` and `word_lattices/`.
      jobs: worker processes; threads beside a network on a GPU.
      progress: called with (splits done, splits).

    Returns:
      The expected calibration error of each split's confidences.
    """
    weights = Weights.load(tuned)
    decoder = decoder.at(weights.acoustic_scale)
    found: dict[str, list[LatticeSummary]] = {}
    for split, scorer in scorers.items():
        folder = out / split / "explored"
        folder.mkdir(parents=True, exist_ok=True)
        searched = search_folder(out, split, weights.acoustic_scale)
        extract = _Extractor(decoder, weights, lang, senones, config, searched, folder)
        paths = map_scored_shards(extract, scorer, jobs, "n-best")
        found[split] = [summary for path in paths for summary in read_summaries(path)]
        write_atomically(out / split / "nbest.tsv", _nbest_table(found[split]))
        progress(len(found), len(scorers))
    references = {split: references_of(scorer) for split, scorer in scorers.items()}
    errors = write_confidences(found, references, tune_on, out)
    remove_lattices(out)
    return errors


def _nbest_table(found: Sequence[LatticeSummary]) -> str:
    lines = ["utterance\trank\tscore\tacoustic\tlm\twords\n"]
    for one in found:
        lines += [
            f"{one.utterance}\t{rank}\t{score:.3f}\t{acoustic:.3f}\t{lm:.3f}\t{words}\n"
            for rank, (score, acoustic, lm, words) in enumerate(one.nbest, 1)
        ]
    return "".join(lines)


@dataclass(frozen=True)
class _Explored:
    """What is extracted from the lattice of an utterance."""

    summary: dict[str, Any]
    """The fields of `LatticeSummary`, but for the utterance."""
    words: WordLattice | None
    """None where no path survived."""


@dataclass(frozen=True)
class _Extractor:
    """Extracts n-best lists, words and word lattices from the lattices of a feature shard.

    It is passed to worker processes.
    """

    decoder: Decoder
    weights: Weights
    lang: Path
    senones: Senones
    config: NbestConfig
    searched: Path
    """The folder of the lattices."""
    out: Path

    def __call__(self, scorer: Scorer, threads: int, shard: tuple[int, Sequence[str]]) -> Path:
        """Write a line per utterance of a shard; the file of an earlier run is kept."""
        number, ids = shard
        path = self.out / f"listed.{number:06d}.jsonl"
        words = word_lattice_path(self.out.parent / "word_lattices", number)
        if path.exists() and words.exists():
            return path
        aligner = WordAligner(
            self.lang,
            self.senones,
            calibration=None,
            frame_shift=scorer.frame_shift,
            beam=self.decoder.config.beam.search,
        )
        shard_found = searched_shard(self.decoder, self.searched, scorer, threads, shard)
        searched = {one.utterance: one for one in shard_found}
        explore = partial(self._explore, searched, aligner, scorer.frame_shift)
        explored = dict(zip(ids, map_scored(explore, scorer, ids, threads), strict=True))
        words.parent.mkdir(exist_ok=True)
        lattices = {u: x.words for u, x in explored.items()}
        weights = self.weights
        decoding = Decoding(weights.acoustic_scale, weights.word_penalty, scorer.frame_shift)
        write_word_lattices(words, lattices, aligner.symbol, decoding)
        lines = [json.dumps({"utterance": u, **x.summary}) + "\n" for u, x in explored.items()]
        write_atomically(path, "".join(lines))
        return path

    def _explore(
        self,
        searched: Mapping[str, Searched],
        aligner: WordAligner,
        frame_shift: float,
        scored: Scored,
    ) -> _Explored:
        one = searched[scored.utterance]
        found, start = one.lattices, scored.clock()
        nbest = found and n_best(found[-1], self.weights, self.config.count)
        summary = {
            "audio_seconds": one.audio_seconds,
            "seconds": round(one.seconds[-1] + scored.clock() - start, 6),
            "nbest": [(h.score, h.acoustic, h.lm, aligner.text(h.words)) for h in nbest],
            "words": [],
        }
        if not found:
            return _Explored(summary, None)
        scale, beam = self.weights.acoustic_scale, self.decoder.config.beam.output
        return _Explored(
            summary | {"words": self._words(found[-1], scored.log_likelihoods * scale, aligner)},
            word_lattice(found[-1], scale, beam, frame_shift),
        )

    def _words(
        self, lattice: ScoredLattice, scores: Tensor, aligner: WordAligner
    ) -> list[tuple[str, float, float, float]]:
        """The fields of each `WordPosterior` of the best path."""
        words = aligner(lattice, self.weights, scores, self.weights.acoustic_scale)
        return [
            (word.word, word.start, round(word.end - word.start, 3), word.confidence)
            for word in words
        ]
