"""Forced alignment: finds the best path through the graph of a transcript."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from toolkit.align.config import AlignConfig
from toolkit.fsa.expand import expand_phones_to_pdfs
from toolkit.fsa.fst import Fst
from toolkit.fsa.lattice import BestPath
from toolkit.fsa.lexicon import (
    GAP,
    GAP_LABEL,
    GapScores,
    transcript_graph,
    unpack_label,
    weighted_transcript_graph,
)
from toolkit.fsa.search import GraphMismatchError, search_best_paths
from toolkit.fsa.search_kernels import FrameScores
from toolkit.hmm.senones import Senones
from toolkit.lang.lang import Lang


@dataclass(frozen=True)
class TrainingGraph:
    """The graph of a transcript, with the list of the pdfs that occur in it."""

    fst: Fst
    """Input label i + 1 stands for `pdfs[i]`, and L + 1 for a gap; output labels are those of
    `pack_label` in `toolkit.fsa.lexicon`."""
    pdfs: Tensor
    """[L] the pdfs, ascending."""

    @classmethod
    def of(cls, graph: Fst) -> "TrainingGraph":
        """Make a training graph from a graph with input labels pdf + 1, and renumber its labels."""
        # Columns 0 ... L - 1 for the L pdfs that occur; labels are column + 1.
        reads = graph.labels > 0
        pdfs, columns = np.unique(graph.labels[reads] - 1, return_inverse=True)
        labels = graph.labels.copy()
        labels[reads] = columns + 1
        labels[reads & _in_gaps(graph)] = len(pdfs) + 1
        return cls(replace(graph, labels=labels), torch.from_numpy(pdfs).long())


def _in_gaps(graph: Fst) -> np.ndarray:
    """Return which arcs read a frame of a gap: [arcs] bool."""
    wrote = np.diff(graph.splits) > 0
    inside = np.zeros(len(graph.labels), dtype=bool)
    inside[wrote] = graph.words[graph.splits[:-1][wrote]] == GAP_LABEL
    # A gap lasts until the path enters the next phone, whose arc writes.
    while inside.any():
        states = np.unique(graph.target[inside])
        longer = inside | (np.isin(graph.source, states) & ~wrote & (graph.labels > 0))
        if (longer == inside).all():
            break
        inside = longer
    return inside


@dataclass
class UtteranceAlignment:
    """The alignment of one utterance: states, phones and words with their frames."""

    states: Tensor
    """[T] int32, the state id of every frame; in gaps, a state of silence."""
    pdfs: Tensor
    """[T] int32, the pdf of every frame; in gaps, one of silence."""
    phones: list[int]
    """The ids of the phones in order, including silences and gaps (`GAP`)."""
    phone_frames: list[int]
    """The frame in which each phone begins."""
    words: list[int]
    """The ids of the words in order; with gaps, their positions in the transcript, from 1."""
    word_phones: list[int]
    """For each word, the position of its first phone in `phones`."""
    score: float
    """Log-likelihood per frame, unscaled; it includes the graph's scores if the lexicon has
    probabilities."""
    beam: float
    """The search beam that found the path."""

    @property
    def word_frames(self) -> list[int]:
        """The first frame of each word."""
        return [self.phone_frames[phone] for phone in self.word_phones]


def force_align(
    log_likelihoods: Sequence[FrameScores],
    graphs: Sequence[TrainingGraph],
    senones: Senones,
    config: AlignConfig,
) -> list[UtteranceAlignment | None]:
    """Find the best path of each utterance through its training graph; None if there is none.

    Args:
      log_likelihoods: [T_n, L_n] of each utterance, a column for each of its graph's pdfs; with
        gaps, [T_n, L_n + 1], the last column for gaps.
      graphs: the training graph of each utterance, from `TranscriptGraphs`.
      senones: the senones of the graphs.
      config: the search; utterances without a path are tried again with the wider beams.
    """
    alignments: list[UtteranceAlignment | None] = [None] * len(graphs)
    # Frames of gaps, whose scores are the last column, get a pdf of silence.
    silence = senones.topology.state_id(senones.topology.silence, 0)
    silence_pdf = senones.table[silence].flatten()[:1].long()
    unaligned = [i for i, scores in enumerate(log_likelihoods) if len(scores)]
    # Utterances without a path are searched again with the next, wider beam.
    for beam in config.beams():
        if not unaligned:
            break
        # `search_best_paths` takes the longest utterances first.
        unaligned.sort(key=lambda i: (-len(log_likelihoods[i]), i))
        paths = search_best_paths(
            [log_likelihoods[i] * config.acoustic_scale for i in unaligned],
            [graphs[i].fst for i in unaligned],
            beam,
        )
        for i, path in zip(unaligned, paths, strict=True):
            if path is not None:
                score = path.score / config.acoustic_scale / len(log_likelihoods[i])
                columns = torch.from_numpy(path.pdfs)
                pdfs = torch.cat([graphs[i].pdfs, silence_pdf])[columns]
                alignments[i] = _read_path(path, pdfs, senones, score, beam.search)
        unaligned = [i for i in unaligned if alignments[i] is None]
    return alignments


def _read_path(
    path: BestPath, pdfs: Tensor, senones: Senones, score: float, beam: float
) -> UtteranceAlignment:
    """Read phones and words from a path's output labels."""
    pairs = [unpack_label(label) for label in path.words]
    phones = [phone for phone, _ in pairs]
    topology = senones.topology
    # State of a frame: the first state of its phone, plus the position of its pdf within a phone.
    entered = torch.zeros(len(pdfs), dtype=torch.int64)
    entered[path.word_frames] = 1
    # The frames of a gap count as states of silence.
    entered_phones = [topology.silence if phone == GAP else phone for phone in phones]
    first = torch.tensor([topology.state_id(phone, 0) for phone in entered_phones])
    states = first[entered.cumsum(0) - 1] + senones.state_of_pdf[pdfs]
    return UtteranceAlignment(
        states=states.int(),
        pdfs=pdfs.int(),
        phones=phones,
        phone_frames=path.word_frames,
        words=[word for _, word in pairs if word],
        word_phones=[i for i, (_, word) in enumerate(pairs) if word],
        score=score,
        beam=beam,
    )


def check_phones(folder: Path, lang: Lang, senones: Senones) -> None:
    """Check that a lexicon and an acoustic model have the same phones with the same ids.

    Args:
      folder: the lexicon's folder, for the message.
      lang: the lexicon.
      senones: the acoustic model's senones.

    Raises:
      GraphMismatchError: the phones differ.
    """
    listed, modelled = lang.real_phones, list(senones.topology.phones)
    if listed != modelled:
        only_one_has = ", ".join(sorted({*listed} ^ {*modelled})[:3])
        difference = f"only one has {only_one_has}" if only_one_has else "they are in another order"
        raise GraphMismatchError(
            f"{folder / 'phones.txt'} has {len(listed)} phones, but topology.json of the acoustic "
            f"model has {len(modelled)} ({difference}). The two files come from different runs: "
            "restore them or write them again"
        )


class TranscriptGraphs:
    """Compiles transcripts into training graphs for one lexicon and acoustic model.

    Args:
      lang: words, phones and pronunciations; a word that it lacks becomes `<UNK>`. If it has
        probabilities, they are the scores of the graphs.
      senones: the HMMs in context, with phones in `lang`'s order.
    """

    def __init__(self, lang: Lang, senones: Senones) -> None:
        self.lang = lang
        self.senones = senones
        self._silence = lang.phones["SIL"]

    def compile(
        self, words: Sequence[str], open_end: bool = False, gaps: GapScores | None = None
    ) -> TrainingGraph:
        """Return the training graph of a transcript.

        Args:
          words: the transcript.
          open_end: let the audio end anywhere in the transcript, for a part of a long recording.
          gaps: allow gaps between the words, with these scores. The graph then writes positions in
            the transcript, from 1, in place of word ids, since the path may leave words out.
        """
        transcript = self._transcript(words, gaps)
        return TrainingGraph.of(expand_phones_to_pdfs(transcript, self.senones, open_end))

    def _transcript(self, words: Sequence[str], gaps: GapScores | None) -> Fst:
        """Return the transcript's phone graph: all pronunciations, with optional silences."""
        lang = self.lang
        ids = range(1, len(words) + 1) if gaps else [lang.word_id(word) for word in words]
        pronunciations = [lang.pronunciation_ids(word) for word in words]
        if lang.probabilities is None:
            return transcript_graph(ids, pronunciations, self._silence, gaps)
        weights = [lang.pronunciation_weights(word) for word in words]
        return weighted_transcript_graph(
            ids, pronunciations, weights, lang.probabilities, self._silence, gaps
        )

    def min_frames(self, words: Sequence[str]) -> int:
        """Return the smallest number of frames that the transcript needs, without silence."""
        return sum(
            min(
                sum(self.senones.topology.min_frames(phone) for phone in phones)
                for phones in self.lang.pronunciation_ids(word)
            )
            for word in words
        )

    def equal_alignment(self, words: Sequence[str], frames: int) -> Tensor:
        """Return a flat start: silence, first pronunciations, silence; states of equal length.

        Returns:
          [frames] state ids, or [0] when there are fewer frames than states.
        """
        topology = self.senones.topology
        phones = [self._silence]
        for word in words:
            phones += self.lang.pronunciation_ids(word)[0]
        phones.append(self._silence)
        path = torch.tensor(
            [topology.state_id(p, s) for p in phones for s in range(topology.num_states(p))]
        )
        if frames < len(path):
            return path[:0]
        # Frame t is in state floor(t S / T) of the path's S states.
        return path[torch.arange(frames) * len(path) // frames]


# Frames searched at a time. This matters only to k2, whose overhead per frame is shared by the
# utterances of a call. With utterances of 10 s, a call for each utterance takes 4.5 times as much
# CPU time as a call for every four; a call for every 16 saves nothing more.
SEARCH_FRAMES = 4000


def align_batched(
    transcripts: Iterable[tuple[str, Sequence[str]]],
    log_likelihoods: Callable[[str, Tensor], FrameScores],
    compiler: TranscriptGraphs,
    config: AlignConfig,
) -> Iterator[tuple[str, UtteranceAlignment | None]]:
    """Align utterances with their transcripts.

    Args:
      transcripts: utterances with their words.
      log_likelihoods: (utterance, pdfs [L]) -> [T, L], as a tensor or computed on access.
      compiler: lexicon and HMMs.
      config: settings of the search.

    Yields:
      Each utterance, in the order given, with its alignment; None if there is no path.
    """
    names: list[str] = []
    scores: list[FrameScores] = []
    graphs: list[TrainingGraph] = []

    def search() -> Iterator[tuple[str, UtteranceAlignment | None]]:
        alignments = force_align(scores, graphs, compiler.senones, config)
        yield from zip(names, alignments, strict=True)
        for rows in (names, scores, graphs):
            rows.clear()

    for utterance, words in transcripts:
        graph = compiler.compile(words)
        names.append(utterance)
        graphs.append(graph)
        scores.append(log_likelihoods(utterance, graph.pdfs))
        if sum(map(len, scores)) >= SEARCH_FRAMES:
            yield from search()
    yield from search()
