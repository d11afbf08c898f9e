"""Noise that comes from all sides, as a microphone array hears it."""

import numpy as np
from scipy import signal

from local.farfield.rooms import SAMPLING_RATE
from toolkit.features.multichannel.device import isotropic_coherence

WINDOW = 512
"""Samples per frame of the spectra that are mixed."""


def isotropic(sounds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Mix independent sounds into spherically isotropic noise (Habets, Cohen and Gannot, 2008).

    In each frequency the spectra are multiplied by the Cholesky factor of the coherence that two
    microphones have in such noise, sin(k d) / (k d).

    Args:
      sounds: [M, S], one for each microphone, of equal power.
      positions: [M, 3] in metres.

    Returns:
      float32[M, S].
    """
    samples = sounds.shape[1]
    frequencies, _, spectra = signal.stft(sounds, SAMPLING_RATE, nperseg=WINDOW)  # [M, F, T]
    coherence = isotropic_coherence(positions, frequencies)
    factors = np.linalg.cholesky(coherence + 1e-6 * np.eye(len(positions)))
    mixed = factors.astype(spectra.dtype) @ spectra.transpose(1, 0, 2)  # [F, M, T]
    found = signal.istft(mixed.transpose(1, 0, 2), SAMPLING_RATE, nperseg=WINDOW)[1]
    return found[:, :samples].astype(np.float32)
