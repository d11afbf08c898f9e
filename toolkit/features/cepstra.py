"""Cepstra as GMMs want them: mean-normalised by speaker, with deltas."""

from torch import Tensor

from toolkit.corpus.manifest import speaker_of
from toolkit.features.deltas import add_deltas
from toolkit.features.store import FeatureStore


class SpeakerNormalisedCepstra:
    """13 cepstra less the speaker's mean, with deltas and delta-deltas: 39 dimensions (C4).

    Mirrors Kaldi's apply-cmvn (means by speaker) | add-deltas.
    """

    def __init__(self, store: FeatureStore) -> None:
        self._store = store
        self._means: dict[str, Tensor] = {}

    def load(self, utterance: str) -> Tensor:
        """The utterance's features [T, 3 * F]."""
        speaker = speaker_of(self._store.cut(utterance))
        if speaker not in self._means:
            self._means[speaker] = self._store.speaker_mean(speaker)
        return add_deltas((self._store.load(utterance) - self._means[speaker]).float())
