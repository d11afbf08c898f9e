"""N-best lists whose scores are apart, to be weighted and rescored."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from toolkit.align.scored import Scored, map_scored, map_scored_shards
from toolkit.align.scorer import Scorer
from toolkit.config.fields import from_plain
from toolkit.decode.calibrate import read_summaries
from toolkit.decode.first_pass import Decoder, last_lattice, load_once
from toolkit.errors import ToolkitError
from toolkit.fsa.lattice import Weights
from toolkit.fsa.nbest import Hypothesis, n_best
from toolkit.lang.tables import SymbolTable
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import reading


class CandidatesError(ToolkitError):
    """N-best lists that cannot be read."""


@dataclass(frozen=True)
class Candidates:
    """The n-best list of an utterance; empty where no path survived the search."""

    texts: tuple[str, ...]
    """Words of each hypothesis, the best under the weights of the search first."""
    acoustic: tuple[float, ...]
    """Acoustic log-likelihood of each, unscaled."""
    graph: tuple[float, ...]
    """Log-probability of each one's pronunciations, silences and HMM transitions."""
    lm: tuple[float, ...]
    """Log-probability of each by the n-gram language model."""

    @classmethod
    def of(
        cls, hypotheses: Sequence[Hypothesis], weights: Weights, words: SymbolTable
    ) -> "Candidates":
        """Take the scores of an n-best list apart.

        Args:
          hypotheses: from `toolkit.fsa.nbest.n_best`.
          weights: those that it was called with.
          words: the names of the words.
        """
        rows = [
            (h.score, h.acoustic, h.lm, " ".join(map(words.symbol, h.words))) for h in hypotheses
        ]
        return cls.of_rows(rows, weights)

    @classmethod
    def of_rows(
        cls, rows: Sequence[tuple[float, float, float, str]], weights: Weights
    ) -> "Candidates":
        """The same from total score, acoustic and LM log-probability, and words."""
        scale, penalty = weights.acoustic_scale, weights.word_penalty
        return cls(
            tuple(text for *_, text in rows),
            tuple(acoustic for _, acoustic, _, _ in rows),
            tuple(
                score - scale * acoustic - lm - penalty * len(text.split())
                for score, acoustic, lm, text in rows
            ),
            tuple(lm for _, _, lm, _ in rows),
        )

    @property
    def sentences(self) -> list[list[str]]:
        """The words of each hypothesis."""
        return [text.split() for text in self.texts]

    @cached_property
    def scores(self) -> np.ndarray:
        """[4, K] float64: `acoustic`, `graph`, `lm`, and numbers of words."""
        lengths = [len(words) for words in self.sentences]
        return np.array([self.acoustic, self.graph, self.lm, lengths], dtype=np.float64)


@dataclass(frozen=True)
class Listed:
    """An utterance and its n-best list."""

    utterance: str
    """Utterance id."""
    audio_seconds: float
    """Length of the utterance."""
    decode_seconds: float
    """Processor time of network and search, see `toolkit.decode.first_pass.Decoded`."""
    candidates: Candidates
    """The list."""


def read_candidates(folder: Path, weights: Weights, count: int) -> list[Listed]:
    """The n-best lists that `toolkit.decode.nbest.write_nbest_and_ctm` has made of a split.

    Args:
      folder: `explored/` of the split.
      weights: those of its decode.
      count: most hypotheses to take of a list.

    Raises:
      CandidatesError: a file is damaged, or of an earlier version.
    """
    found = []
    for path in sorted(folder.glob("listed.*.jsonl")):
        with reading(path, CandidatesError, "decode again"):
            found += [
                Listed(
                    one.utterance,
                    one.audio_seconds,
                    one.seconds,
                    Candidates.of_rows(one.nbest[:count], weights),
                )
                for one in read_summaries(path)
            ]
    return found


def list_candidates(
    scorer: Scorer, decoder: Decoder, penalty: float, count: int, out: Path, jobs: int
) -> list[Listed]:
    """Decode every utterance of the scorer's feature store into an n-best list.

    Args:
      scorer: the acoustic model with its features.
      decoder: graph and search; the lattices of its last pass are used.
      penalty: word penalty with which the best are chosen, at the decoder's acoustic scale.
      count: length of the lists.
      out: the folder that gets a file per feature shard; those of an earlier run are kept.
      jobs: worker processes; threads beside a network on a GPU.

    Raises:
      CandidatesError: a file of an earlier run is damaged.
    """
    work = partial(_list_shard, decoder, penalty, count, out)
    found = []
    for path in map_scored_shards(work, scorer, jobs, "n-best"):
        with reading(path, CandidatesError, "remove it to make it again"):
            lines = path.read_text(encoding="utf-8").splitlines()
            found += [from_plain(Listed, json.loads(line)) for line in lines]
    return found


def _list_shard(
    decoder: Decoder,
    penalty: float,
    count: int,
    out: Path,
    scorer: Scorer,
    threads: int,
    shard: tuple[int, Sequence[str]],
) -> Path:
    number, ids = shard
    path = out / f"candidates.{number:06d}.jsonl"
    if path.exists():
        return path
    load_once(decoder)
    explore = _explorer(decoder, penalty, count, scorer)
    lines = [json.dumps(asdict(x)) + "\n" for x in map_scored(explore, scorer, ids, threads)]
    write_atomically(path, "".join(lines))
    return path


def _explorer(
    decoder: Decoder, penalty: float, count: int, scorer: Scorer
) -> Callable[[Scored], Listed]:
    table = SymbolTable.read(decoder.words)
    weights = Weights(decoder.config.acoustic_scale, penalty)

    def explore(scored: Scored) -> Listed:
        start = scored.clock() - scored.seconds
        lattice = last_lattice(scored, decoder)
        hypotheses = [] if lattice is None else n_best(lattice, weights, count)
        candidates = Candidates.of(hypotheses, weights, table)
        seconds = round(scorer.store.cut(scored.utterance).duration, 4)
        return Listed(scored.utterance, seconds, round(scored.clock() - start, 6), candidates)

    return explore
