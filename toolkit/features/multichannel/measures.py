"""What a front end does to speech, noise and echo, where these are known (C1)."""

import numpy as np
import torch

SNR_WINDOW = 512
"""Samples per frame when ratios of speech to the rest are measured."""


def ratio_db(one: np.ndarray, other: np.ndarray) -> float:
    """Return the ratio of two signals' energies in dB, such as the echo return loss enhancement:
    the echo before over the echo after cancellation."""
    energies = [float(np.sum(np.square(x, dtype=np.float64))) for x in (one, other)]
    return float(10 * np.log10(max(energies[0], 1e-20) / max(energies[1], 1e-20)))


def snr_db(speech: np.ndarray, rest: np.ndarray) -> float:
    """Return the ratio of two signals' energies in dB, the mean over frequencies.

    So attenuating some of them gains nothing. Frequencies from 1/80 to 7/8 of the band: below and
    above there is little speech.
    """
    spectra = torch.stft(
        torch.from_numpy(np.stack([speech, rest])).double(),
        SNR_WINDOW,
        SNR_WINDOW // 4,
        window=torch.hann_window(SNR_WINDOW, dtype=torch.float64),
        return_complex=True,
    )
    energy = spectra.abs().square().sum(dim=2)
    bins = energy.shape[1]
    kept = energy[:, max(1, bins // 80) : bins * 7 // 8].clamp_min(1e-12)
    return float((10 * (kept[0] / kept[1]).log10()).mean())
