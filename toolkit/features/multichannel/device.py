"""Streaming front end of a device (C1): fixed beams, echo cancellation, beam selection.

The front end processes audio block by block and keeps a state. Its output depends on at most 8 ms
of later input, never on the rest of the utterance.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import fft

from toolkit.features.config import BeamsConfig, DeviceConfig, SelectionConfig
from toolkit.features.multichannel.echo import EchoFilters

PLAYING = 1e-10
"""A block of the playback counts as sound if its mean square is above this."""


@dataclass(frozen=True)
class DeviceOutput:
    """A device's output for some blocks; B beams, S samples."""

    samples: np.ndarray
    """float32[S]: the output channel."""
    echo: np.ndarray
    """float32[B, S]: the echo that was subtracted from each beam."""
    shares: np.ndarray
    """float32[B, S]: weight of each beam in the output: 1 for the chosen beam and 0 for the others,
    except during a cross-fade."""


class DeviceFrontend:
    """Processes a stream of microphone and playback signals, and keeps its state.

    Args:
      positions: positions of the microphones, [M, 3] in metres. None: not known; the microphones
        themselves are used as beams.
      microphones: M, the number of microphones.
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
        hashable = None if positions is None else tuple(map(tuple, positions.tolist()))
        self._filters = _spectra(hashable, microphones, sampling_rate, config)
        beams = len(self._filters)
        # [M, block] microphones and [block] playback of the last block, for overlap-save
        self._last_block = np.zeros((microphones, block), np.float32)
        self._played = np.zeros(block, np.float32)
        # [parts, F] spectra of the newest blocks of playback, the newest first
        self._history = np.zeros((parts, block + 1), np.complex64)
        self._echo = EchoFilters(beams, config.echo)
        self._selector = BeamSelector(beams, block, sampling_rate, config.selection)
        self._first = -(-round(config.first_seconds * sampling_rate) // block)
        """Number of blocks with playback before the cancellers adapt."""
        # Mean squares of beams [B] and playback in these blocks
        self._powers: list[tuple[np.ndarray, float]] = []
        self._fade = np.linspace(0.0, 1.0, block, dtype=np.float32)

    def beams(self, microphones: np.ndarray) -> np.ndarray:
        """Return the beams of the next whole blocks: [M, n * block] to [B, n * block]."""
        block = self._block
        blocks = microphones.reshape(len(microphones), -1, block)
        previous = np.concatenate([self._last_block[:, None], blocks[:, :-1]], axis=1)
        self._last_block = blocks[:, -1].copy()
        spectra = fft.rfft(np.concatenate([previous, blocks], axis=2))  # [M, n, F]
        mixed = self._filters.transpose(2, 0, 1) @ spectra.transpose(2, 0, 1)  # [F, B, n]
        # Overlap-save: the first half of each block of 2 * block samples wraps around.
        beams = fft.irfft(mixed.transpose(1, 2, 0))[..., block:]  # [B, n, block]
        return beams.reshape(len(beams), -1).astype(np.float32)

    def process(self, microphones: np.ndarray, playback: np.ndarray) -> DeviceOutput:
        """Process whole blocks; the output is delayed by `delay` samples.

        Args:
          microphones: float32[M, n * block].
          playback: float32[n * block], the playback at that time.
        """
        beams = self.beams(microphones)  # [B, n * block]
        echo, shares = np.zeros_like(beams), np.zeros_like(beams)
        for start in range(0, beams.shape[1], self._block):
            part = slice(start, start + self._block)
            echo[:, part] = self._estimate(beams[:, part], playback[part])
            last = self._selector.chosen
            chosen = self._selector.choose(beams[:, part] - echo[:, part])
            # Cross-fade over the block; the shares add up to 1, even if the beam stays the same.
            shares[last, part] = 1.0 - self._fade
            shares[chosen, part] += self._fade
        samples = np.sum(shares * (beams - echo), axis=0)
        return DeviceOutput(samples, echo, shares)

    def _estimate(self, captured: np.ndarray, played: np.ndarray) -> np.ndarray:
        """Estimate the echo [B, block] in a block of all beams."""
        # The newest spectrum is that of the previous and the newest block (overlap-save).
        self._history[1:] = self._history[:-1]
        self._history[0] = fft.rfft(np.concatenate([self._played, played]))
        self._played = played
        power = float(np.mean(played**2))
        # Before the filters start, only powers are measured; these set the filters' uncertainty.
        if len(self._powers) < self._first:
            if power > PLAYING:
                self._powers.append((np.mean(captured**2, axis=1), power))
                if len(self._powers) == self._first:
                    captured_powers, played_powers = zip(*self._powers, strict=True)
                    self._echo.start(
                        np.mean(captured_powers, axis=0), float(np.mean(played_powers))
                    )
            return np.zeros_like(captured)
        if not np.any(self._history):
            return np.zeros_like(captured)
        return self._echo.update(self._history, captured)


def process_utterance(
    microphones: np.ndarray,
    playback: np.ndarray,
    positions: np.ndarray | None,
    sampling_rate: int,
    config: DeviceConfig,
) -> DeviceOutput:
    """Process an utterance with a device in its initial state; the output is not delayed.

    Args:
      microphones: float32[M, S].
      playback: float32[S].
      positions, sampling_rate, config: see `DeviceFrontend`.
    """
    frontend = DeviceFrontend(positions, len(microphones), sampling_rate, config)
    channels = _whole_blocks(np.vstack([microphones, playback]), frontend.delay, config)
    output = frontend.process(channels[:-1], channels[-1])
    on_time = slice(frontend.delay, frontend.delay + len(playback))
    return DeviceOutput(output.samples[on_time], output.echo[:, on_time], output.shares[:, on_time])


def fixed_beams(
    microphones: np.ndarray,
    positions: np.ndarray | None,
    sampling_rate: int,
    config: DeviceConfig,
) -> np.ndarray:
    """Return the beams [B, S] float32 of an utterance or of a component, not delayed."""
    frontend = DeviceFrontend(positions, len(microphones), sampling_rate, config)
    beams = frontend.beams(_whole_blocks(microphones, frontend.delay, config))
    return beams[:, frontend.delay : frontend.delay + microphones.shape[1]]


def _whole_blocks(channels: np.ndarray, delay: int, config: DeviceConfig) -> np.ndarray:
    """Pad channels by the output delay and then to whole blocks."""
    padding = delay + -(channels.shape[1] + delay) % config.echo.block
    return np.pad(channels, ((0, 0), (0, padding))).astype(np.float32)


@lru_cache(256)
def _spectra(
    positions: tuple[tuple[float, ...], ...] | None,
    microphones: int,
    sampling_rate: int,
    config: DeviceConfig,
) -> np.ndarray:
    """Return the spectra of the beam filters [B, M, F]; cached per array.

    Without positions every microphone is a beam.
    """
    if positions is None:
        filters = np.eye(microphones, dtype=np.float32)[:, :, None]
    else:
        filters = beam_filters(np.array(positions), config.beams, sampling_rate)
    return fft.rfft(filters, 2 * config.echo.block)


FLOOR_RISE_DB = 6.0
"""Rise of a beam's noise floor per second where the power is above it."""
SPEECH_DB = 6.0
"""Power over the noise floor from which a block counts as speech, and the beam may change."""
MARGIN_DB = 1.0
"""Lead over the current beam that another beam needs to be chosen; it keeps the choice stable."""


class BeamSelector:
    """Chooses a beam block by block.

    Each beam has a noise floor, which follows falling power at once and rising power slowly. The
    beam with the highest power over its own floor is chosen if that ratio is at least `SPEECH_DB`,
    and `MARGIN_DB` above that of the current beam. In pauses the beam stays.

    Args:
      beams: number of beams.
      block: samples per block.
      sampling_rate: in Hz.
      config: the frequencies that are compared, and the smoothing.
    """

    def __init__(self, beams: int, block: int, sampling_rate: int, config: SelectionConfig) -> None:
        seconds = block / sampling_rate
        self._keep = float(np.exp(-seconds / config.smoothing))
        self._rise = 10 ** (FLOOR_RISE_DB * seconds / 10)
        frequencies = np.fft.rfftfreq(block, 1 / sampling_rate)
        low, high = config.band_hertz
        self._bins = (frequencies >= low) & (frequencies <= high)
        self._power: np.ndarray | None = None
        self._floor = np.zeros(beams)
        self.chosen = 0
        """The beam of the last block."""

    def choose(self, blocks: np.ndarray) -> int:
        """Take the next block of all beams [B, block]; return the beam chosen for it."""
        spectra = np.fft.rfft(blocks.astype(np.float64))[:, self._bins]
        power = np.sum(np.abs(spectra) ** 2, axis=1) + 1e-12
        if self._power is None:
            self._power, self._floor = power, power.copy()
            return self.chosen
        # Exponential smoothing; the floor rises by at most FLOOR_RISE_DB per second.
        self._power = self._keep * self._power + (1 - self._keep) * power
        self._floor = np.minimum(self._power, self._rise * self._floor)
        snr = 10 * np.log10(self._power / self._floor)  # [B], dB over each beam's floor
        best = int(snr.argmax())
        is_better = snr[best] >= snr[self.chosen] + MARGIN_DB
        if is_better and snr[best] >= SPEECH_DB:
            self.chosen = best
        return self.chosen


SPEED_OF_SOUND = 343.0
"""Metres per second."""
WHITE_NOISE_GAIN_DB = 0.0
"""Lowest gain of the talker over the microphones' own noise. A superdirective beam subtracts
microphone signals that are almost equal at low frequencies, which amplifies that noise. Mean gain
in the ratio of speech to noise with limits of -10, -6, -3, 0 and 3 dB (20 utterances, 20 degrees):
0.7, 1.2, 1.4, 1.7 and 1.7 dB."""
LOADINGS = np.concatenate([[0.0], np.logspace(-6, 3, 46)])
"""Diagonal loadings to try, ascending; with the largest one the beam is delay-and-sum."""


def directions(config: BeamsConfig) -> np.ndarray:
    """Return unit vectors from the device in the direction of each beam: float64 [B, 3]."""
    azimuth = 2 * np.pi * np.arange(config.beams) / config.beams
    up = np.deg2rad(config.elevation_degrees)
    level = np.cos(up) * np.stack([np.cos(azimuth), np.sin(azimuth)], axis=1)
    return np.column_stack([level, np.full(config.beams, np.sin(up))])


def beam_filters(positions: np.ndarray, config: BeamsConfig, sampling_rate: int) -> np.ndarray:
    """Design the filters of all beams: float32 [B, M, taps].

    A beam is the sum of the filtered microphones: the signal from its direction as a microphone in
    the middle of the array would record it, `config.delay` samples late.

    Args:
      positions: [M, 3] in metres.
      config: directions and limits.
      sampling_rate: in Hz.
    """
    # 1. Weights at the frequencies of an FFT of twice the filter's length
    size = 2 * (config.taps - 1)
    frequencies = np.fft.rfftfreq(size, 1 / sampling_rate)
    around = positions - positions.mean(axis=0)
    weights = superdirective_weights(around, directions(config), frequencies, WHITE_NOISE_GAIN_DB)
    # 2. Impulse responses, centred on sample 0, then delayed to make them causal
    responses = np.fft.irfft(weights.conj(), size, axis=-1)
    delayed = np.roll(responses, config.delay, axis=-1)[..., : config.taps]
    # 3. A flat window that fades the ends
    fade = np.hanning(config.taps + 2)[1:-1] ** 0.25
    return (delayed * fade).astype(np.float32)


def superdirective_weights(
    positions: np.ndarray, towards: np.ndarray, frequencies: np.ndarray, gain_db: float
) -> np.ndarray:
    """Compute the weights with the highest gain over diffuse noise: complex [B, M, F].

    w = (G + m I)^-1 d / (d^H (G + m I)^-1 d), the MVDR beam for spherically isotropic noise of the
    coherence G (Bitzer and Simmer, 2001). The loading m is the smallest of `LOADINGS` for which the
    gain over the microphones' own noise, |w^H d|^2 / w^H w, is at least `gain_db`. If no loading
    reaches this gain, m is the largest one. d is the steering vector.

    Args:
      positions: [M, 3] in metres from the middle of the array.
      towards: [B, 3] unit vectors.
      frequencies: [F] in Hz.
      gain_db: lowest gain over the microphones' own noise.
    """
    arrivals = -(positions @ towards.T) / SPEED_OF_SOUND  # [M, B] seconds after the middle
    steering = np.exp(-2j * np.pi * frequencies * arrivals.T[..., None]).transpose(0, 2, 1)
    coherence = isotropic_coherence(positions, frequencies)
    best = np.zeros_like(steering)
    done = np.zeros(steering.shape[:2], dtype=bool)
    for loading in LOADINGS:
        loaded = coherence + (loading + 1e-9) * np.eye(len(positions))
        solved = np.linalg.solve(loaded[None], steering[..., None])[..., 0]  # [B, F, M]
        weights = solved / np.sum(steering.conj() * solved, axis=2, keepdims=True)
        # w^H d = 1, so that the gain over uncorrelated noise is 1 / w^H w: [B, F].
        gain = -10 * np.log10(np.sum(np.abs(weights) ** 2, axis=2))
        best = np.where(done[..., None], best, weights)
        done |= gain >= gain_db
        if done.all():
            break
    return best.transpose(0, 2, 1)


def isotropic_coherence(positions: np.ndarray, frequencies: np.ndarray) -> np.ndarray:
    """Return the coherence of diffuse noise between microphones: float64 [F, M, M].

    Args:
      positions: [M, 3] in metres.
      frequencies: [F] in Hz.
    """
    # Of spherically isotropic noise: sin(x) / x with x = 2 pi f d / c; np.sinc has the factor pi.
    apart = np.linalg.norm(positions[:, None] - positions[None], axis=2)  # [M, M] metres
    return np.sinc(2 * frequencies[:, None, None] * apart / SPEED_OF_SOUND)
