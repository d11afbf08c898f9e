"""Choice of one of several beams while a device listens (C1)."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class SelectionConfig:
    """How the beam with the talker is found; times are in seconds."""

    band_hertz: tuple[float, float] = (300.0, 4000.0)
    """Frequencies whose power is compared."""
    floor_rise_db: float = 6.0
    """Rise of the noise floor per second where the power is above it."""
    smoothing: float = 0.1
    """Time constant of the power."""
    speech_db: float = 6.0
    """Power over the noise floor from which a block counts as speech, and the beam may change."""
    margin_db: float = 1.0
    """A beam must be better by this, so that the choice does not flicker."""

    def __post_init__(self) -> None:
        if self.smoothing <= 0 or self.floor_rise_db <= 0:
            raise ValueError("smoothing and floor_rise_db must be above 0")
        if not 0 <= self.band_hertz[0] < self.band_hertz[1]:
            raise ValueError("band_hertz must be (low, high)")


class BeamSelector:
    """Chooses a beam block by block.

    Each beam has a noise floor, which its power lowers at once and raises slowly. While the beam
    that is loudest over its own floor is above it by `speech_db`, it takes over from the one before
    if it is better by `margin_db`; in pauses the beam stays.

    Args:
      beams: their number.
      block: samples per block.
      sampling_rate: in Hz.
      config: thresholds.
    """

    def __init__(self, beams: int, block: int, sampling_rate: int, config: SelectionConfig) -> None:
        self._config = config
        seconds = block / sampling_rate
        self._keep = float(np.exp(-seconds / config.smoothing))
        self._rise = 10 ** (config.floor_rise_db * seconds / 10)
        frequencies = np.fft.rfftfreq(block, 1 / sampling_rate)
        low, high = config.band_hertz
        self._bins = (frequencies >= low) & (frequencies <= high)
        self._power: np.ndarray | None = None
        self._floor = np.zeros(beams)
        self.chosen = 0
        """The beam of the last block."""

    def choose(self, blocks: np.ndarray) -> int:
        """Return the beam for the next block [B, block]."""
        spectra = np.fft.rfft(blocks.astype(np.float64))[:, self._bins]
        power = np.sum(np.abs(spectra) ** 2, axis=1) + 1e-12
        if self._power is None:
            self._power, self._floor = power, power.copy()
            return self.chosen
        self._power = self._keep * self._power + (1 - self._keep) * power
        self._floor = np.minimum(self._power, self._rise * self._floor)
        over = 10 * np.log10(self._power / self._floor)
        best, config = int(over.argmax()), self._config
        better = over[best] >= over[self.chosen] + config.margin_db
        if better and over[best] >= config.speech_db:
            self.chosen = best
        return self.chosen
