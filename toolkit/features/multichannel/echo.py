"""Acoustic echo cancellation with the playback channel as reference (C1)."""

import numpy as np
from scipy import fft

from toolkit.features.config import EchoConfig

FIRST_DECAY = 0.6
"""Initial estimate of how the echo path's power decays from one `block` of taps to the next."""


def estimate_echo(
    microphones: np.ndarray, playback: np.ndarray, config: EchoConfig
) -> tuple[np.ndarray, np.ndarray]:
    """Estimate the echo of the playback in every channel (microphone or beam).

    A partitioned-block frequency-domain Kalman filter (Kuech, Mabande and Enzner, 2014): an LMS
    filter for each frequency, whose step size falls where there is more than echo. It needs no
    double-talk detector. An NLMS in Python, sample by sample as in pyroomacoustics, finds the same
    filter in white noise, but diverges during double talk. NLMS takes some twenty times as
    long for one microphone and fifty times for seven, which are adapted together here.

    Args:
      microphones: [M, S].
      playback: [S].

    Returns:
      The echo float32[M, S], to be subtracted from the microphones, and the filters
      float32[M, taps] at the end of the last pass.
    """
    block, parts = config.block, config.taps // config.block
    count, length = microphones.shape
    blocks = -(-length // block)
    # 1. Spectra of two blocks of playback at a time (overlap-save): the previous and the current.
    captured = _blocks(microphones, blocks, block)
    played = _blocks(playback[None], blocks, block)[:, 0]
    previous = np.concatenate([np.zeros((1, block), np.float32), played[:-1]])
    spectra = fft.rfft(np.concatenate([previous, played], axis=1), axis=1)  # [blocks, F]
    state = EchoFilters(count, config)
    state.start(np.mean(microphones**2, axis=1), float(np.mean(playback**2)))
    # 2. Adapt the filters from block to block; the echo of the last pass is returned.
    echo = np.zeros((blocks, count, block), np.float32)
    for _ in range(config.passes if np.any(playback) else 0):
        history = np.zeros((parts, spectra.shape[1]), np.complex64)
        for number in range(blocks):
            history[1:] = history[:-1]
            history[0] = spectra[number]
            echo[number] = state.update(history, captured[number])
    filters = fft.irfft(state.filters, axis=2)[:, :, :block].reshape(count, -1)
    return echo.transpose(1, 0, 2).reshape(count, -1)[:, :length], filters


class EchoFilters:
    """Echo filters of all channels by partition and frequency, with their uncertainty.

    Args:
      count: M, the number of channels.
      config: lengths and initial estimates.
    """

    def __init__(self, count: int, config: EchoConfig) -> None:
        parts, bins = config.taps // config.block, config.block + 1
        self._config = config
        self.filters = np.zeros((count, parts, bins), np.complex64)
        """[M, parts, F]: the spectra of the filters' parts, of `block` taps each."""
        # P, the variance of the filters' errors, and N, the power of all that is not echo
        self._uncertainty = np.zeros((count, parts, bins), np.float32)
        self._near_end = np.zeros((count, bins), np.float32)

    def start(self, captured: np.ndarray, played: float) -> None:
        """Set the filters' initial uncertainty.

        Args:
          captured: [M] mean square of the channels.
          played: mean square of the playback.
        """
        # Expected |H|^2 of each part: the echo's share of the captured power over the played power
        decay = FIRST_DECAY ** np.arange(self.filters.shape[1])
        power = self._config.first_power * captured[:, None] / max(played, 1e-12) * decay
        self._uncertainty[:] = power[:, :, None]

    def update(self, history: np.ndarray, captured: np.ndarray) -> np.ndarray:
        """Adapt the filters to one block; return the estimated echo [M, block].

        Args:
          history: [parts, F] spectra of the newest blocks of playback, the newest first.
          captured: [M, block] samples of the channels.
        """
        config, block = self._config, self._config.block
        # Y_m = sum_p X_p H_mp; the second half of its inverse FFT is free of wrap-around.
        echo = fft.irfft(np.einsum("pf,mpf->mf", history, self.filters))[:, block:]
        # Error of the prediction, with zeros in the first half (overlap-save).
        error = fft.rfft(np.concatenate([np.zeros_like(captured), captured - echo], axis=1))
        power = np.abs(error) ** 2
        # Power of all that is not echo, smoothed over blocks; the first block starts it.
        keep = config.smoothing if np.any(self._near_end) else 0.0
        self._near_end = keep * self._near_end + (1 - keep) * power
        energy = np.abs(history) ** 2
        # Kalman gain per partition p and frequency: K_p = P_p / (sum_q |X_q|^2 P_q / 2 + N).
        expected = 0.5 * np.einsum("pf,mpf->mf", energy, self._uncertainty) + self._near_end
        gain = self._uncertainty / np.maximum(expected, 1e-12)[:, None]
        # H_p <- A (H_p + K_p X_p^* E)
        step = fft.irfft(gain * history.conj() * error[:, None], axis=2)
        step[:, :, block:] = 0.0  # a partition has `block` taps
        # The echo path persists by A, `stability`: P <- A^2 (1 - K |X|^2 / 2) P + (1 - A^2) |H|^2.
        stay = config.stability
        self._uncertainty *= stay**2 * (1 - 0.5 * gain * energy)
        self._uncertainty += (1 - stay**2) * np.abs(self.filters) ** 2
        self.filters = stay * (self.filters + fft.rfft(step, axis=2))
        # The echo of the same block with the updated filters.
        return fft.irfft(np.einsum("pf,mpf->mf", history, self.filters))[:, block:]


def _blocks(channels: np.ndarray, blocks: int, block: int) -> np.ndarray:
    """Cut [M, S] into blocks [blocks, M, block]; zeros pad the last block."""
    padded = np.zeros((len(channels), blocks * block), np.float32)
    padded[:, : channels.shape[1]] = channels
    return padded.reshape(len(channels), blocks, block).transpose(1, 0, 2)
