"""The front end of a device as it listens (C1): beams, echo cancelled on each, one of them heard.

Block by block, with state: what comes out depends on what went in up to 8 ms later, never on the
rest of the utterance.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import fft

from toolkit.features.multichannel.echo import EchoConfig, EchoFilters
from toolkit.features.multichannel.selection import BeamSelector, SelectionConfig
from toolkit.features.multichannel.superdirective import BeamsConfig, beam_filters

PLAYING = 1e-10
"""Mean square from which a block of the playback counts as sound."""


@dataclass(frozen=True)
class DeviceConfig:
    """Settings of a device's front end."""

    beams: BeamsConfig = BeamsConfig()
    """Fixed beams."""
    # Echo left at the output of nine scenes with music or speech, 2 s before the utterance: -14.5
    # dB with a smoothing of 0.6 and a first power of 0.03, -16.7 with these, -16.8 with 0.95.
    echo: EchoConfig = EchoConfig(smoothing=0.9, first_power=0.1, passes=1)
    """The echo canceller on each beam; its block is the front end's."""
    selection: SelectionConfig = SelectionConfig()
    """Choice of a beam."""
    first_seconds: float = 0.2
    """Playback that is heard before the echo cancellers begin to adapt: it tells them how loud the
    echo may be."""

    def __post_init__(self) -> None:
        if self.echo.passes != 1:
            raise ValueError("echo.passes must be 1: a device hears everything once")
        if self.beams.taps > self.echo.block + 1:
            raise ValueError(
                f"beams.taps is {self.beams.taps}, at most echo.block + 1, {self.echo.block + 1}"
            )
        if self.first_seconds <= 0:
            raise ValueError("first_seconds must be above 0")


@dataclass(frozen=True)
class Heard:
    """What a device made of some blocks; B beams, S samples."""

    samples: np.ndarray
    """float32[S]: the one channel that goes out."""
    echo: np.ndarray
    """float32[B, S]: the echo that was subtracted from each beam."""
    shares: np.ndarray
    """float32[B, S]: the share of each beam in the output, 1 of one and 0 of the others, but while
    one fades into another."""


class DeviceFrontend:
    """A front end with the state of all that it has heard.

    Args:
      positions: of the microphones, [M, 3] in metres. None: not known; the microphones themselves
        take the place of beams.
      microphones: M.
      sampling_rate: in Hz.
      config: settings.
    """

    def __init__(
        self,
        positions: np.ndarray | None,
        microphones: int,
        sampling_rate: int,
        config: DeviceConfig,
    ) -> None:
        block, parts = config.echo.block, config.echo.taps // config.echo.block
        self._block = block
        self.delay = 0 if positions is None else config.beams.delay
        """Samples by which the output is late."""
        places = None if positions is None else tuple(map(tuple, positions.tolist()))
        self._filters = _spectra(places, microphones, sampling_rate, config)
        beams = len(self._filters)
        self._before = np.zeros((microphones, block), np.float32)
        self._played = np.zeros(block, np.float32)
        self._history = np.zeros((parts, block + 1), np.complex64)
        self._echo = EchoFilters(beams, config.echo)
        self._selector = BeamSelector(beams, block, sampling_rate, config.selection)
        self._first = -(-round(config.first_seconds * sampling_rate) // block)
        """Blocks with playback that are heard before the cancellers adapt."""
        self._powers: list[tuple[np.ndarray, float]] = []
        self._fade = np.linspace(0.0, 1.0, block, dtype=np.float32)

    def beams(self, microphones: np.ndarray) -> np.ndarray:
        """Return the beams of whole blocks [M, n * block], and go on from there: [B, n * block]."""
        block = self._block
        blocks = microphones.reshape(len(microphones), -1, block)
        before = np.concatenate([self._before[:, None], blocks[:, :-1]], axis=1)
        self._before = blocks[:, -1].copy()
        spectra = fft.rfft(np.concatenate([before, blocks], axis=2))  # [M, n, F]
        mixed = self._filters.transpose(2, 0, 1) @ spectra.transpose(2, 0, 1)  # [F, B, n]
        found = fft.irfft(mixed.transpose(1, 2, 0))[..., block:]
        return found.reshape(len(found), -1).astype(np.float32)

    def hear(self, microphones: np.ndarray, playback: np.ndarray) -> Heard:
        """Process whole blocks; the output is `delay` samples late.

        Args:
          microphones: float32[M, n * block].
          playback: float32[n * block], what the device plays at that time.
        """
        found = self.beams(microphones)
        echo, shares = np.zeros_like(found), np.zeros_like(found)
        for start in range(0, found.shape[1], self._block):
            part = slice(start, start + self._block)
            echo[:, part] = self._estimate(found[:, part], playback[part])
            last = self._selector.chosen
            chosen = self._selector.choose(found[:, part] - echo[:, part])
            shares[last, part] = 1.0 - self._fade
            shares[chosen, part] += self._fade
        samples = np.sum(shares * (found - echo), axis=0)
        return Heard(samples, echo, shares)

    def _estimate(self, captured: np.ndarray, played: np.ndarray) -> np.ndarray:
        """Return the echo in a block of all beams, [B, block]."""
        self._history[1:] = self._history[:-1]
        self._history[0] = fft.rfft(np.concatenate([self._played, played]))
        self._played = played
        power = float(np.mean(played**2))
        if len(self._powers) < self._first:
            if power > PLAYING:
                self._powers.append((np.mean(captured**2, axis=1), power))
                if len(self._powers) == self._first:
                    heard, sent = zip(*self._powers, strict=True)
                    self._echo.start(np.mean(heard, axis=0), float(np.mean(sent)))
            return np.zeros_like(captured)
        if not np.any(self._history):
            return np.zeros_like(captured)
        return self._echo.update(self._history, captured)


def hear_utterance(
    microphones: np.ndarray,
    playback: np.ndarray,
    positions: np.ndarray | None,
    sampling_rate: int,
    config: DeviceConfig,
) -> Heard:
    """Process an utterance from a device that has just been switched on; it is not late.

    Args:
      microphones: float32[M, S].
      playback: float32[S].
      positions, sampling_rate, config: see `DeviceFrontend`.
    """
    frontend = DeviceFrontend(positions, len(microphones), sampling_rate, config)
    together = _whole_blocks(np.vstack([microphones, playback]), frontend.delay, config)
    heard = frontend.hear(together[:-1], together[-1])
    part = slice(frontend.delay, frontend.delay + len(playback))
    return Heard(heard.samples[part], heard.echo[:, part], heard.shares[:, part])


def fixed_beams(
    microphones: np.ndarray,
    positions: np.ndarray | None,
    sampling_rate: int,
    config: DeviceConfig,
) -> np.ndarray:
    """Return the beams of an utterance, or of a component of it, not late: float32[B, S]."""
    frontend = DeviceFrontend(positions, len(microphones), sampling_rate, config)
    found = frontend.beams(_whole_blocks(microphones, frontend.delay, config))
    return found[:, frontend.delay : frontend.delay + microphones.shape[1]]


def _whole_blocks(channels: np.ndarray, delay: int, config: DeviceConfig) -> np.ndarray:
    """Pad channels by what comes late, and to whole blocks."""
    more = delay + -(channels.shape[1] + delay) % config.echo.block
    return np.pad(channels, ((0, 0), (0, more))).astype(np.float32)


@lru_cache(256)
def _spectra(
    positions: tuple[tuple[float, ...], ...] | None,
    microphones: int,
    sampling_rate: int,
    config: DeviceConfig,
) -> np.ndarray:
    """The spectra of the beams' filters [B, M, F], designed once for each array; of unknown
    positions one beam for each microphone."""
    if positions is None:
        filters = np.eye(microphones, dtype=np.float32)[:, :, None]
    else:
        filters = beam_filters(np.array(positions), config.beams, sampling_rate)
    return fft.rfft(filters, 2 * config.echo.block)
