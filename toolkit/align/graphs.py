"""Training graphs of transcripts, from lexicon and topology."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from toolkit.fsa.alignment import TrainingGraph
from toolkit.fsa.beam import GraphMismatchError
from toolkit.fsa.fst import Fst
from toolkit.fsa.hmm import expand_phones
from toolkit.fsa.transcript import transcript_graph, weighted_transcript_graph
from toolkit.hmm.senones import Senones
from toolkit.lang.lang import Lang


def check_phones(folder: Path, lang: Lang, senones: Senones) -> None:
    """Check that a lexicon has the phones of an acoustic model, with the same ids.

    Args:
      folder: of the lexicon, for the message.
      lang: the lexicon.
      senones: those of the acoustic model.

    Raises:
      GraphMismatchError: the phones differ.
    """
    listed, modelled = lang.real_phones, list(senones.topology.phones)
    if listed != modelled:
        differing = sorted({*listed} ^ {*modelled})[:3] or "in another order"
        raise GraphMismatchError(
            f"{folder / 'phones.txt'} has {len(listed)} phones, topology.json of the acoustic model"
            f" {len(modelled)} (differing: {differing}): they come from different runs; restore"
            " the files or write them again"
        )


class TrainingGraphCompiler:
    """Turns transcripts into training graphs for one lexicon and acoustic model.

    Args:
      lang: words, phones and pronunciations; a word that it lacks is `<UNK>`. If it has
        probabilities, they are the scores of the graphs.
      senones: the HMMs in context, with phones in `lang`'s order.
    """

    def __init__(self, lang: Lang, senones: Senones) -> None:
        self.lang = lang
        self.senones = senones
        self._silence = lang.phones["SIL"]

    def compile(self, words: Sequence[str], open_end: bool = False) -> TrainingGraph:
        """The graph of one transcript.

        Args:
          words: the transcript.
          open_end: let the audio end anywhere in the transcript, for a part of a long recording.
        """
        transcript = self._transcript(words)
        return TrainingGraph.of(expand_phones(transcript, self.senones, open_end))

    def _transcript(self, words: Sequence[str]) -> Fst:
        lang = self.lang
        ids = [lang.word_id(word) for word in words]
        pronunciations = [lang.pronunciation_ids(word) for word in words]
        if lang.probabilities is None:
            return transcript_graph(ids, pronunciations, self._silence)
        weights = [lang.pronunciation_weights(word) for word in words]
        return weighted_transcript_graph(
            ids, pronunciations, weights, lang.probabilities, self._silence
        )

    def min_frames(self, words: Sequence[str]) -> int:
        """The fewest frames that the transcript needs, without silence."""
        return sum(
            min(
                sum(self.senones.topology.min_frames(phone) for phone in phones)
                for phones in self.lang.pronunciation_ids(word)
            )
            for word in words
        )

    def equal_alignment(self, words: Sequence[str], frames: int) -> Tensor:
        """The flat start: silence, first pronunciations, silence, states of equal length.

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
        return path[torch.arange(frames) * len(path) // frames]
