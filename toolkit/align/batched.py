"""Alignment of many utterances, several at a time."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from torch import Tensor

from toolkit.align.graphs import TrainingGraphCompiler
from toolkit.fsa.alignment import AlignConfig, TrainingGraph, UtteranceAlignment, force_align_batch
from toolkit.fsa.frame_rows import FrameScores

# Frames searched at a time. It matters to k2 alone, whose overhead per frame the utterances share:
# those of 10 s one by one take it 4.5 times as much processor time, 16 at a time no less than 4.
SEARCH_FRAMES = 4000


def align_batched(
    transcripts: Iterable[tuple[str, Sequence[str]]],
    log_likelihoods: Callable[[str, Tensor], FrameScores],
    compiler: TrainingGraphCompiler,
    config: AlignConfig,
) -> Iterator[tuple[str, UtteranceAlignment | None]]:
    """Align utterances with their transcripts.

    Args:
      transcripts: utterances with their words.
      log_likelihoods: (utterance, pdfs [L]) -> [T, L], all of them or computed where they are read.
      compiler: lexicon and HMMs.
      config: the search.

    Yields:
      Each utterance, in the order given, with its alignment; None where no path leads through.
    """
    names: list[str] = []
    scores: list[FrameScores] = []
    graphs: list[TrainingGraph] = []

    def search() -> Iterator[tuple[str, UtteranceAlignment | None]]:
        found = force_align_batch(scores, graphs, compiler.senones, config)
        yield from zip(names, found, strict=True)
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
