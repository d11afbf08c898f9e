"""Training graphs of transcripts, from lexicon and topology."""

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from toolkit.fsa.arcs import Fsa
from toolkit.fsa.hmm import hmm_transducer
from toolkit.fsa.transcript import training_graph, transcript_graph
from toolkit.hmm.topology import Topology
from toolkit.lang.lang import Lang


class TranscriptCompiler:
    """Turns transcripts into training graphs for one topology and lexicon.

    Args:
      lang: words, phones and pronunciations; a word that it lacks is `<UNK>`.
      topology: the HMMs, with phones in `lang`'s order.
    """

    def __init__(self, lang: Lang, topology: Topology) -> None:
        self.lang = lang
        self.topology = topology
        self._silence = lang.phones["SIL"]

    def __reduce__(self) -> tuple:
        """Pickle without H, which k2 cannot pickle."""
        return TranscriptCompiler, (self.lang, self.topology)

    @cached_property
    def _h(self) -> Fsa:
        return hmm_transducer(self.topology)

    def compile(self, words: Sequence[str]) -> Fsa:
        """The graph of one transcript; reads pdf + 1 per frame, writes word ids."""
        ids = [self.lang.word_id(word) for word in words]
        pronunciations = [self.lang.pronunciation_ids(word) for word in words]
        return training_graph(self._h, transcript_graph(ids, pronunciations, self._silence))

    def min_frames(self, words: Sequence[str]) -> int:
        """The fewest frames that the transcript needs, without silence."""
        return sum(
            min(
                sum(self.topology.min_frames(phone) for phone in phones)
                for phones in self.lang.pronunciation_ids(word)
            )
            for word in words
        )

    def equal_alignment(self, words: Sequence[str], frames: int) -> Tensor:
        """The flat start: silence, first pronunciations, silence, states of equal length.

        Returns:
          [frames] pdfs, or [0] when there are fewer frames than states.
        """
        phones = [self._silence]
        for word in words:
            phones += self.lang.pronunciation_ids(word)[0]
        phones.append(self._silence)
        path = torch.tensor(
            [self.topology.pdf(p, s) for p in phones for s in range(self.topology.num_states(p))]
        )
        if frames < len(path):
            return path[:0]
        return path[torch.arange(frames) * len(path) // frames]
