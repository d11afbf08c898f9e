"""Draws the conditions of an utterance, mixes it, and hears it as a device does."""

import zlib

import numpy as np

from local.farfield.config import FarfieldConfig, Placement
from local.farfield.diffuse import isotropic
from local.farfield.mix import HIGHEST, Levels, Mixture, Playback, convolve, mix_in_room, reflection
from local.farfield.pools import Pool
from local.farfield.rooms import SAMPLING_RATE, Room
from local.farfield.selection import FarfieldUtterance
from toolkit.features.multichannel.beamforming import ratio_db, snr_db
from toolkit.features.multichannel.device import DeviceOutput, fixed_beams, process_utterance


def simulate(
    utterance: FarfieldUtterance, dry: np.ndarray, config: FarfieldConfig, pool: Pool
) -> tuple[np.ndarray, Mixture, dict[str, float | str]]:
    """Draw a room, noise, playback and levels by the utterance's id, and mix.

    Args:
      utterance: which one.
      dry: float32[S], its clean speech.
      config: rooms, levels and front end.
      pool: rooms and sounds.

    Returns:
      What the sets hear of it, float32[S]; the mixture; and its conditions, with the front end's
      measures where the utterance is written with all microphones.
    """
    rng = np.random.default_rng([config.seed, zlib.crc32(utterance.id.encode())])
    names = list(config.placements)
    name = utterance.placement or names[int(rng.integers(len(names)))]
    placement = config.placements[name]
    room = pool.room(name, int(rng.integers(pool.rooms)))
    talker = int(rng.integers(len(room.talkers)))
    used = slice(None if utterance.array or config.frontend == "device" else 1)
    lead = round(config.lead_seconds * SAMPLING_RATE)
    noise = _noise(pool.noise, room, used, lead + len(dry), rng.uniform(*config.diffuse), rng)
    playback = _playback(pool.playback, placement, room, used, lead + len(dry), config, rng)
    levels = _levels(placement, room, talker, config, rng)
    mixture = mix_in_room(dry, room.talkers[talker, used], noise, playback, levels, rng, lead)
    custom = {"placement": name, "t60": room.t60, "snr_db": round(levels.snr_db, 2)}
    if mixture.echo is not None:
        custom["echo_db"] = round(levels.echo_db, 2)
    after = mixture.after(lead)
    if config.frontend == "microphone":
        return after.microphones[0], after, custom
    positions = room.positions if len(room.positions) else None
    heard = process_utterance(
        mixture.microphones, mixture.playback, positions, SAMPLING_RATE, config.device
    )
    if utterance.array:
        custom |= _measures(mixture, heard, positions, lead, config)
    samples = heard.samples[lead:]
    peak = max(float(np.abs(samples).max()), 1e-9)
    return samples * np.float32(min(1.0, HIGHEST / peak)), after, custom


def _noise(
    sounds: np.ndarray,
    room: Room,
    used: slice,
    samples: int,
    diffuse: float,
    rng: np.random.Generator,
) -> np.ndarray:
    """Noise at the microphones, float32[M, S]: from its source and, by a share, from all sides."""
    responses, row = room.noise[used], sounds[int(rng.integers(len(sounds)))]
    before = responses.shape[1]  # so that the noise is reverberant from the first sample
    point = convolve(_excerpt(row, before + samples, rng), responses)[:, before : before + samples]
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
    """What the device plays, if anything, and whether the path of its echo changes."""
    sound = _excerpt(sounds[int(rng.integers(len(sounds)))], samples, rng)
    changed = reflection(room.echo[used], rng)
    plays, changes = rng.random() < placement.playback_share, rng.random() < config.path_changes
    moment = int(rng.integers(samples))
    later = (moment, changed) if changes else None
    return Playback(sound, room.echo[used], later) if plays else None


def _levels(
    placement: Placement, room: Room, talker: int, config: FarfieldConfig, rng: np.random.Generator
) -> Levels:
    """Draw the levels; the talker's falls with the distance, the microphones' own noise stays."""
    metres = room.metres[talker] if len(room.metres) else np.mean(placement.talker_metres)
    heard = rng.uniform(*config.talker_db_spl) - 20 * np.log10(metres)
    return Levels(
        snr_db=rng.uniform(*placement.snr_db),
        echo_db=rng.uniform(*placement.echo_db),
        self_noise_db=float(heard - config.self_noise_db_spl),
        level_db=rng.uniform(*config.level_dbfs),
    )


def _measures(
    mixture: Mixture,
    heard: DeviceOutput,
    positions: np.ndarray | None,
    lead: int,
    config: FarfieldConfig,
) -> dict[str, float]:
    """The front end's echo return loss enhancement on the beam heard, and its gain over the first
    microphone in the ratio of speech to all else."""

    def beams(channels: np.ndarray) -> np.ndarray:
        return fixed_beams(channels, positions, SAMPLING_RATE, config.device)

    speech = np.sum(heard.shares * beams(mixture.speech), axis=0)[lead:]
    first, alone = mixture.microphones[0, lead:], mixture.speech[0, lead:]
    gain = snr_db(speech, heard.samples[lead:] - speech) - snr_db(alone, first - alone)
    found = {"device_snr_gain_db": round(gain, 2)}
    if mixture.echo is not None:
        echo = beams(mixture.echo)
        before, after = heard.shares * echo, heard.shares * (echo - heard.echo)
        found["device_erle_db"] = round(ratio_db(before.sum(0)[lead:], after.sum(0)[lead:]), 2)
    return found


def _excerpt(sound: np.ndarray, length: int, rng: np.random.Generator) -> np.ndarray:
    """Draw an excerpt of a sound [N], which is repeated where it is too short: [length]."""
    start = int(rng.integers(len(sound)))
    return np.take(sound, np.arange(start, start + length), mode="wrap")
