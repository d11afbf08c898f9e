"""Far-field utterances: mixing in a room, simulation of a device, and the audio files."""

import json
import shutil
import zlib
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np
from scipy import fft

from local.farfield.config import FarfieldConfig, Placement
from local.farfield.noise import Pool
from local.farfield.rooms import LEAD, SAMPLING_RATE, FarfieldError, Room, isotropic
from local.farfield.selection import FarfieldUtterance
from toolkit.corpus.audio import encode_audio
from toolkit.features.audio import AudioError
from toolkit.features.cut_audio import load_cut_audio
from toolkit.features.multichannel.beamforming import ratio_db, snr_db
from toolkit.features.multichannel.device import DeviceOutput, fixed_beams, process_utterance

DISTORTION = 0.1
"""Distortion by a loudspeaker at its limit: x becomes x - 0.1 x^3, a third harmonic of -31 dB."""

PLAYED_PEAK = 0.5
"""Peak of the playback channel, the same for every loudness."""

HIGHEST = 0.95
"""Highest sample of a mixture; a louder mixture is attenuated as a whole."""

CHANGE_SECONDS = 0.05
"""Duration of the crossfade from one echo path to another."""


LEAD_SECONDS = 2.0
"""Seconds of noise and playback that the device hears before an utterance begins."""

DIFFUSE_SHARE = (0.3, 0.7)
"""Range of the share of the noise's power that comes from all sides instead of its source. The
share is 0 if the microphones' positions are not known."""

PATH_CHANGES = 0.3
"""Share of the utterances with playback during which somebody moves beside the device, so that the
path of the echo changes."""

SELF_NOISE_DB_SPL = 30.0
"""Level of the microphones' own noise."""

LEVEL_DBFS = (-38.0, -24.0)
"""Range of the level at the first microphone, relative to full scale."""


@dataclass(frozen=True)
class Levels:
    """Levels of the components, in dB, at the first microphone while the utterance lasts."""

    snr_db: float
    """Ratio of reverberant speech to noise."""
    echo_db: float
    """Ratio of reverberant speech to echo."""
    self_noise_db: float
    """Ratio of reverberant speech to the microphones' own noise."""
    level_db: float
    """Level of the mixture relative to full scale."""


@dataclass(frozen=True)
class Playback:
    """Sound that the device plays, and its echo path; M microphones, S samples."""

    samples: np.ndarray
    """float32[S], any level."""
    response: np.ndarray
    """float32[M, R], see `Room.echo`."""
    later: tuple[int, np.ndarray] | None = None
    """Sample at which the path changes, and the response from there on; None: no change."""


@dataclass(frozen=True)
class Mixture:
    """An utterance in a room and its components: M microphones, S samples, full scale 1."""

    microphones: np.ndarray
    """float32[M, S]: the sum of all components."""
    speech: np.ndarray
    """float32[M, S]: the reverberant speech in it."""
    echo: np.ndarray | None
    """float32[M, S]: the echo in it; None: nothing is played."""
    playback: np.ndarray
    """float32[S]: the sound that the device plays; zeros if none."""

    def after(self, lead: int) -> "Mixture":
        """Return the mixture without the samples before `lead`."""
        echo = None if self.echo is None else self.echo[:, lead:]
        return Mixture(
            self.microphones[:, lead:], self.speech[:, lead:], echo, self.playback[lead:]
        )


def mix_in_room(
    dry: np.ndarray,
    talker: np.ndarray,
    noise: np.ndarray,
    playback: Playback | None,
    levels: Levels,
    rng: np.random.Generator,
    lead: int = 0,
) -> Mixture:
    """Mix clean speech, noise and playback as recorded in a room.

    Args:
      dry: float32[S - lead], clean speech.
      talker: float32[M, R], see `Room`.
      noise: float32[M, S], at the microphones, any level.
      playback: the sound that the device plays, of S samples; None: it plays nothing.
      levels: levels of the components.
      rng: generator of the microphones' own noise.
      lead: samples before the utterance begins.
    """
    samples = noise.shape[1]
    speech = np.zeros_like(noise)
    # Responses begin LEAD samples before the direct sound, which is cut off: no delay is added.
    speech[:, lead:] = convolve(dry, talker)[:, LEAD : LEAD + samples - lead]
    # All levels are relative to the reverberant speech at the first microphone.
    power = _power(speech[0, lead:])
    total = speech + _gain(power, noise[0, lead:], levels.snr_db) * noise
    echo = None
    reference = np.zeros(samples, dtype=np.float32)
    if playback is not None and np.any(playback.samples):
        reference = playback.samples / np.abs(playback.samples).max()
        # The loudspeaker's memoryless third-order distortion: x - a x^3.
        echo = _echo(reference - DISTORTION * reference**3, playback)
        echo *= _gain(power, echo[0, lead:], levels.echo_db)
        total += echo
        reference = PLAYED_PEAK * reference
    self_noise = rng.standard_normal(noise.shape, dtype=np.float32)
    total += np.float32(np.sqrt(power) * 10 ** (-levels.self_noise_db / 20)) * self_noise
    # Scale to the level relative to full scale, but without clipping.
    peak = max(float(np.abs(total).max()), 1e-9)
    loudness = np.sqrt(max(_power(total[0, lead:]), 1e-18))
    scale = np.float32(min(10 ** (levels.level_db / 20) / loudness, HIGHEST / peak))
    return Mixture(total * scale, speech * scale, None if echo is None else echo * scale, reference)


def reflection(response: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return an echo path [M, R] with somebody in the room who reflects the loudspeaker's sound.

    A person at a distance of 0.5 to 1.5 m reflects it 3 to 9 ms later and 8 to 16 dB lower.
    """
    late = int(rng.uniform(0.003, 0.009) * SAMPLING_RATE)
    changed = response.copy()
    changed[:, late:] += np.float32(10 ** (-rng.uniform(8, 16) / 20)) * response[:, :-late]
    return changed


def convolve(samples: np.ndarray, responses: np.ndarray) -> np.ndarray:
    """Convolve [S] with every row of [M, R]: float32[M, S + R - 1]."""
    length = len(samples) + responses.shape[1] - 1
    # A transform of at least S + R - 1 points makes the circular convolution linear.
    padded = fft.next_fast_len(length, real=True)
    spectrum = fft.rfft(samples, padded) * fft.rfft(responses, padded)
    return fft.irfft(spectrum, padded)[:, :length]


def _echo(sound: np.ndarray, playback: Playback) -> np.ndarray:
    """Return the loudspeaker's sound at the microphones [M, S], by one path or by two in turn."""
    part = slice(LEAD, LEAD + len(sound))
    echo = convolve(sound, playback.response)[:, part]
    if playback.later is None:
        return echo
    start, response = playback.later
    since = (np.arange(len(sound)) - start) / (CHANGE_SECONDS * SAMPLING_RATE)
    share = np.clip(since, 0.0, 1.0).astype(np.float32)
    # Crossfade from the first path to the second.
    return echo + share * (convolve(sound, response)[:, part] - echo)


def _power(samples: np.ndarray) -> float:
    """Return the mean square of samples."""
    return float(np.mean(np.square(samples, dtype=np.float64)))


def _gain(power: float, reference: np.ndarray, ratio_db: float) -> np.float32:
    """Return the factor that scales `reference` to a power `ratio_db` dB below `power`."""
    reference_power = _power(reference)
    return np.float32(
        np.sqrt(power / reference_power) * 10 ** (-ratio_db / 20) if reference_power > 0 else 0.0
    )


def simulate(
    utterance: FarfieldUtterance, dry: np.ndarray, config: FarfieldConfig, pool: Pool
) -> tuple[np.ndarray, Mixture, dict[str, float | str]]:
    """Draw a room, noise, playback and levels, with the utterance's id as seed, and mix.

    Args:
      utterance: the utterance to simulate.
      dry: float32[S], its clean speech.
      config: rooms, levels and front end.
      pool: rooms and sounds.

    Returns:
      The front end's output, float32[S]; the mixture; and its conditions. These include the front
      end's measures if the utterance is written with all microphones.
    """
    rng = np.random.default_rng([config.seed, zlib.crc32(utterance.id.encode())])
    names = list(config.placements)
    name = utterance.placement or names[int(rng.integers(len(names)))]
    placement = config.placements[name]
    room = pool.room(name, int(rng.integers(pool.rooms)))
    talker = int(rng.integers(len(room.talkers)))
    # All microphones, or only the first if neither the front end nor the files need the others.
    used = slice(None if utterance.array or config.frontend == "device" else 1)
    lead = round(LEAD_SECONDS * SAMPLING_RATE)
    noise = _noise(pool.noise, room, used, lead + len(dry), rng.uniform(*DIFFUSE_SHARE), rng)
    playback = _playback(pool.playback, placement, room, used, lead + len(dry), config, rng)
    levels = _levels(placement, room, talker, config, rng)
    mixture = mix_in_room(dry, room.talkers[talker, used], noise, playback, levels, rng, lead)
    custom = {"placement": name, "t60": room.t60, "snr_db": round(levels.snr_db, 2)}
    if mixture.echo is not None:
        custom["echo_db"] = round(levels.echo_db, 2)
    utterance_mixture = mixture.after(lead)
    if config.frontend == "microphone":
        return utterance_mixture.microphones[0], utterance_mixture, custom
    positions = room.positions if len(room.positions) else None
    output = process_utterance(
        mixture.microphones, mixture.playback, positions, SAMPLING_RATE, config.device
    )
    if utterance.array:
        custom |= _measures(mixture, output, positions, lead, config)
    # The front end adapts during the lead; the utterance begins after it.
    samples = output.samples[lead:]
    peak = max(float(np.abs(samples).max()), 1e-9)
    return samples * np.float32(min(1.0, HIGHEST / peak)), utterance_mixture, custom


def _noise(
    sounds: np.ndarray,
    room: Room,
    used: slice,
    samples: int,
    diffuse: float,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return noise at the microphones, float32[M, S]: from its source and from all sides."""
    responses, row = room.noise[used], sounds[int(rng.integers(len(sounds)))]
    lead = responses.shape[1]  # so that the noise is reverberant from the first sample
    point = convolve(_excerpt(row, lead + samples, rng), responses)[:, lead : lead + samples]
    if not len(room.positions):
        return point
    around = isotropic(
        np.stack([_excerpt(row, samples, rng) for _ in responses]), room.positions[used]
    )
    parts = ((1 - diffuse, point), (diffuse, around))
    return sum(
        np.float32(np.sqrt(share / max(float(np.mean(part[0] ** 2)), 1e-12))) * part
        for share, part in parts
    )


def _playback(
    sounds: np.ndarray,
    placement: Placement,
    room: Room,
    used: slice,
    samples: int,
    config: FarfieldConfig,
    rng: np.random.Generator,
) -> Playback | None:
    """Draw the device's playback and its echo path, which may change; None if it plays nothing."""
    sound = _excerpt(sounds[int(rng.integers(len(sounds)))], samples, rng)
    changed = reflection(room.echo[used], rng)
    plays, changes = rng.random() < placement.playback_share, rng.random() < PATH_CHANGES
    moment = int(rng.integers(samples))
    later = (moment, changed) if changes else None
    return Playback(sound, room.echo[used], later) if plays else None


def _levels(
    placement: Placement, room: Room, talker: int, config: FarfieldConfig, rng: np.random.Generator
) -> Levels:
    """Draw the levels; the talker's falls with the distance, the microphones' noise is constant."""
    metres = room.metres[talker] if len(room.metres) else np.mean(placement.talker_metres)
    speech_db_spl = rng.uniform(*config.talker_db_spl) - 20 * np.log10(metres)
    return Levels(
        snr_db=rng.uniform(*placement.snr_db),
        echo_db=rng.uniform(*placement.echo_db),
        self_noise_db=float(speech_db_spl - SELF_NOISE_DB_SPL),
        level_db=rng.uniform(*LEVEL_DBFS),
    )


def _measures(
    mixture: Mixture,
    output: DeviceOutput,
    positions: np.ndarray | None,
    lead: int,
    config: FarfieldConfig,
) -> dict[str, float]:
    """Return how much the front end reduces echo and improves the ratio of speech to all else.

    Returns:
      `device_erle_db`, the echo return loss enhancement on the selected beam, if there is an echo;
      `device_snr_gain_db`, the gain in that ratio over the first microphone.
    """

    def beams(channels: np.ndarray) -> np.ndarray:
        return fixed_beams(channels, positions, SAMPLING_RATE, config.device)

    speech = np.sum(output.shares * beams(mixture.speech), axis=0)[lead:]
    first, alone = mixture.microphones[0, lead:], mixture.speech[0, lead:]
    gain = snr_db(speech, output.samples[lead:] - speech) - snr_db(alone, first - alone)
    measures = {"device_snr_gain_db": round(gain, 2)}
    if mixture.echo is not None:
        echo = beams(mixture.echo)
        echo_in, echo_out = output.shares * echo, output.shares * (echo - output.echo)
        measures["device_erle_db"] = round(
            ratio_db(echo_in.sum(0)[lead:], echo_out.sum(0)[lead:]), 2
        )
    return measures


def _excerpt(sound: np.ndarray, length: int, rng: np.random.Generator) -> np.ndarray:
    """Draw an excerpt [length] of a sound [N], which is repeated if it is too short."""
    start = int(rng.integers(len(sound)))
    return np.take(sound, np.arange(start, start + length), mode="wrap")


@dataclass(frozen=True)
class Group:
    """Utterances of one set that one task simulates; an incomplete group is made again."""

    folder: Path
    """Folder of their audio."""
    utterances: tuple[FarfieldUtterance, ...]
    """The utterances."""
    config: FarfieldConfig
    """Settings of the simulation."""
    pool: Pool | None = None
    """Rooms and noise; only needed for making."""

    @property
    def done(self) -> Path:
        """File with the utterances made and failed, as JSON; written after all audio."""
        return self.folder / "done.json"


def make_group(group: Group) -> None:
    """Write the audio of a group and `done.json`: ids, lengths and conditions.

    Raises:
      FarfieldError: an utterance could not be mixed; the message names it. Unreadable audio is not
        an error; it is listed in `done.json`.
    """
    partial = group.folder.with_name(f".{group.folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    finished, failed = [], []
    for utterance in group.utterances:
        try:
            finished.append(_make(utterance, group, partial))
        except AudioError as error:
            failed.append([utterance.id, " ".join(str(error).split())])
        except Exception as error:
            raise FarfieldError(
                f"the far-field version of {utterance.id} could not be simulated: {error!r}"
            ) from error
    content = json.dumps({"made": finished, "failed": failed}, indent=1) + "\n"
    (partial / group.done.name).write_text(content, encoding="utf-8")
    shutil.rmtree(group.folder, ignore_errors=True)
    partial.rename(group.folder)


def file_name(id: str, part: str) -> str:
    """Return the file name of an utterance; `part` is empty for the front end's output."""
    return f"{quote(id, safe='')}{'.' if part else ''}{part}.flac"


def _make(utterance: FarfieldUtterance, group: Group, folder: Path) -> dict:
    """Write the audio of one utterance; return its entry in `done.json`."""
    dry = load_cut_audio(utterance.source, SAMPLING_RATE).numpy()
    # [S] what the set's front end records, and the mixture's components [M, S].
    recorded, mixture, custom = simulate(utterance, dry, group.config, group.pool)
    files = {"": recorded[None]}
    if utterance.array:
        files["raw"] = mixture.microphones[:1]
        files["array"] = np.concatenate([mixture.microphones, mixture.playback[None]])
        files["speech"] = mixture.speech
        files |= {} if mixture.echo is None else {"echo": mixture.echo}
    for part, channels in files.items():
        samples = np.clip(np.rint(channels.T * 32768), -32768, 32767).astype(np.int16)
        path = folder / file_name(utterance.id, part)
        path.write_bytes(encode_audio(samples, SAMPLING_RATE, "FLAC"))
    channels = {part: len(samples) for part, samples in files.items()}
    return {"id": utterance.id, "samples": len(dry), "channels": channels, "custom": custom}
