"""Noise, and the pools of rooms and noises that a set draws from."""

import io
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from lhotse import MonoCut
from scipy.signal import butter, lfilter

from local.farfield.config import FarfieldConfig
from local.farfield.rooms import (
    SAMPLING_RATE,
    Room,
    compute_room,
    noise_files_by_pool,
    response_files_by_pool,
    room_from_file,
)
from local.synthetic.sound import coloured_noise
from toolkit.features.audio import AudioError, load_audio
from toolkit.features.cut_audio import load_cut_audio
from toolkit.processes.workers import map_in_processes
from toolkit.storage.files import write_atomically

Rng = np.random.Generator

BABBLE_TALKERS = 4
"""Number of talkers in babble."""

SECONDS = 20
"""Length of a noise or playback signal, which is repeated for longer utterances."""

VARIANTS = 3
"""Number of signals of each kind of noise and of playback."""

SPEECH_UTTERANCES = 60
"""Number of utterances from which the babble and the played speech of a pool are made."""


def white(rng: Rng, length: int) -> np.ndarray:
    """Make white noise: hiss."""
    return coloured_noise(rng, length, 0.0)


def pink(rng: Rng, length: int) -> np.ndarray:
    """Make noise of power 1 / f to 1 / f^2: traffic, wind, ventilation."""
    return coloured_noise(rng, length, rng.uniform(1.0, 2.0))


def hum(rng: Rng, length: int) -> np.ndarray:
    """Make mains hum: harmonics of 50 or 60 Hz, and some noise."""
    time = np.arange(length) / SAMPLING_RATE
    mains = rng.choice((50.0, 60.0))
    # 24 harmonics up to 1.2 or 1.44 kHz, falling by about 4 dB per octave.
    tones = sum(
        rng.uniform(0.3, 1.0) / k**0.7 * np.sin(2 * np.pi * (mains * k * time + rng.random()))
        for k in range(1, 25)
    )
    return unit_power(unit_power(tones) + 0.3 * pink(rng, length))


def appliance(rng: Rng, length: int) -> np.ndarray:
    """Make the sound of a motor of varying speed with a fan: harmonics over pulsating noise."""
    time = np.arange(length) / SAMPLING_RATE
    # Phase of the motor: the integral of a speed that varies by 1 %.
    wander = np.cumsum(1 + 0.01 * np.sin(2 * np.pi * rng.uniform(0.1, 0.5) * time)) / SAMPLING_RATE
    pitch = rng.uniform(80.0, 240.0)
    tones = sum(
        rng.uniform(0.2, 1.0) / k * np.sin(2 * np.pi * (pitch * k * wander + rng.random()))
        for k in range(1, 16)
    )
    band = (rng.uniform(150.0, 400.0), rng.uniform(3000.0, 6500.0))
    air = lfilter(*butter(2, band, "bandpass", fs=SAMPLING_RATE), rng.standard_normal(length))
    pulse = 1 + 0.3 * np.sin(2 * np.pi * (rng.uniform(0.5, 6.0) * time + rng.random()))
    return unit_power(rng.uniform(0.3, 1.0) * unit_power(tones) + pulse * unit_power(air))


def clatter(rng: Rng, length: int) -> np.ndarray:
    """Make the sound of dishes: knocks that ring briefly, over faint steady noise."""
    noise = np.zeros(length + SAMPLING_RATE)
    time = np.arange(SAMPLING_RATE // 4) / SAMPLING_RATE
    # A Poisson process of 5 knocks per second, each of 4 decaying partials.
    for start in rng.integers(0, length, rng.poisson(5.0 * length / SAMPLING_RATE)):
        knock = sum(
            np.sin(2 * np.pi * rng.uniform(800.0, 6000.0) * time)
            * np.exp(-time / rng.uniform(0.01, 0.05))
            for _ in range(4)
        )
        noise[start : start + len(time)] += rng.lognormal(0.0, 0.7) * knock
    return unit_power(unit_power(noise[:length]) + 0.25 * pink(rng, length))


def babble(rng: Rng, length: int, speech: Sequence[np.ndarray]) -> np.ndarray:
    """Mix several talkers, each made of utterances drawn from `speech`."""
    return unit_power(sum(running_speech(rng, length, speech) for _ in range(BABBLE_TALKERS)))


def running_speech(rng: Rng, length: int, speech: Sequence[np.ndarray]) -> np.ndarray:
    """Join utterances drawn from `speech`, at equal power."""
    parts: list[np.ndarray] = []
    while sum(map(len, parts)) < length:
        parts.append(unit_power(speech[int(rng.integers(len(speech)))]))
    return unit_power(np.concatenate(parts)[:length])


def music(rng: Rng, length: int) -> np.ndarray:
    """Make chords of plucked notes, a bass and a beat, in some key and tempo."""
    beat = int(SAMPLING_RATE * 60 / rng.uniform(85.0, 150.0))
    key, minor = 110.0 * 2 ** (rng.integers(0, 12) / 12), int(rng.random() < 0.5)
    track = np.zeros(length + 4 * beat)
    notes: dict[int, np.ndarray] = {}
    fading = np.exp(-np.arange(beat // 4) / (0.02 * SAMPLING_RATE))
    # Tonic, subdominant, dominant and submediant, in semitones above the key.
    chords = [(0, 4 - minor, 7), (5, 9 - minor, 12), (7, 11, 14), (-3 - minor, 0, 4 - minor)]
    for number, start in enumerate(range(0, length, beat)):
        chord = chords[number // 4 % 4]
        tune = chord if number % 2 == 0 else (chord[int(rng.integers(3))] + 12,)
        for step, loud in [(step, 1.0) for step in tune] + [(chord[0] - 12, 1.5)]:
            if step not in notes:
                notes[step] = _pluck(rng, key * 2 ** (step / 12), 4 * beat)
            track[start : start + 4 * beat] += loud * notes[step]
        hit = (0.8 if number % 2 else 0.3) * rng.standard_normal(beat // 4) * fading
        track[start : start + len(hit)] += hit
    return unit_power(track[:length])


def _pluck(rng: Rng, pitch: float, length: int) -> np.ndarray:
    """Make a note of `pitch` Hz: harmonics that fade the sooner the higher they are."""
    time = np.arange(length) / SAMPLING_RATE
    decay = rng.uniform(0.2, 0.5)
    return sum(
        np.sin(2 * np.pi * (pitch * k * time + rng.random())) * np.exp(-time * k**0.5 / decay) / k
        for k in range(1, min(12, int(7000 / pitch)) + 1)
    )


def unit_power(samples: np.ndarray) -> np.ndarray:
    """Scale samples to a mean square of 1; silence stays silence."""
    power = float(np.mean(np.square(samples, dtype=np.float64)))
    return samples / np.sqrt(power) if power > 0 else samples


KINDS: dict[str, Callable[[Rng, int], np.ndarray]] = {
    "white": white,
    "pink": pink,
    "hum": hum,
    "appliance": appliance,
    "clatter": clatter,
}
"""The kinds of noise that are synthesised without speech."""


@dataclass(frozen=True)
class Pool:
    """The files of the rooms, noise and playback of some sets."""

    folder: Path
    """Folder of all pools."""
    name: str
    """Name of the pool: `train`, `val` or `test`."""
    rooms: int
    """Number of rooms per placement."""

    def room(self, placement: str, number: int) -> Room:
        """Read a room of a placement."""
        return _room(room_path(self.folder, self.name, placement, number))

    @property
    def noise(self) -> np.ndarray:
        """Noise signals, float32[N, seconds x 16000] of unit power."""
        return _sounds(self.folder / f"{self.name}-noise.npy")

    @property
    def playback(self) -> np.ndarray:
        """Playback signals, music and speech, float32[N, seconds x 16000] of unit power."""
        return _sounds(self.folder / f"{self.name}-playback.npy")


@lru_cache(256)
def _room(path: Path) -> Room:
    """Read a room; cached."""
    return Room.load(path)


@lru_cache(8)
def _sounds(path: Path) -> np.ndarray:
    """Read an array of sounds, mapped into memory; cached."""
    return np.load(path, mmap_mode="r", allow_pickle=False)


def room_path(folder: Path, pool: str, placement: str, number: int) -> Path:
    """Return the path of a room."""
    return folder / f"{pool}-{placement}-{number:03d}.npz"


@dataclass(frozen=True)
class _Task:
    """A room, or an array of sounds, to be made."""

    config: FarfieldConfig
    pool: str
    path: Path
    placement: str = ""
    number: int = 0
    files: tuple[Path, ...] = ()
    speech: tuple[MonoCut, ...] = ()


def make_pools(
    names: Sequence[str],
    config: FarfieldConfig,
    background: dict[str, list[MonoCut]],
    folder: Path,
    jobs: int = 1,
) -> dict[str, Pool]:
    """Make the pools in `folder`, where existing files are kept; `jobs` does not affect the bytes.

    Args:
      names: names of the pools that are needed.
      config: rooms and sources of noise.
      background: clean speech by pool, for babble and playback.

    Returns:
      The pools by name.
    """
    _room.cache_clear()
    _sounds.cache_clear()
    files = None if config.responses is None else response_files_by_pool(config)
    recordings = None if config.noise is None else noise_files_by_pool(config.noise)
    tasks: list[_Task] = []
    rooms = {}
    for name in names:
        response_files = {p: tuple(files[name, p]) for p in config.placements} if files else {}
        rooms[name] = config.train_rooms if name == "train" else config.test_rooms
        rooms[name] = min([rooms[name], *map(len, response_files.values())])
        tasks += _room_tasks(name, config, folder, rooms[name], response_files)
        speech = tuple(_draw(background[name], _rng(config, name)))
        noise = tuple(recordings[name]) if recordings else ()
        tasks.append(_Task(config, name, folder / f"{name}-noise.npy", files=noise, speech=speech))
        tasks.append(_Task(config, name, folder / f"{name}-playback.npy", speech=speech))
    missing = [task for task in tasks if not task.path.exists()]
    for _ in map_in_processes(_make, missing, jobs):
        pass
    return {name: Pool(folder, name, rooms[name]) for name in names}


def _room_tasks(
    pool: str, config: FarfieldConfig, folder: Path, rooms: int, files: dict[str, tuple[Path, ...]]
) -> list[_Task]:
    """Return the tasks that make the rooms of a pool."""
    tasks = []
    for placement in config.placements:
        for number in range(rooms):
            path = room_path(folder, pool, placement, number)
            response_files = (files[placement][number],) if files else ()
            tasks.append(_Task(config, pool, path, placement, number, response_files))
    return tasks


def _rng(config: FarfieldConfig, name: str) -> np.random.Generator:
    """Return the random generator that belongs to a name."""
    return np.random.default_rng([config.seed, zlib.crc32(name.encode())])


def _draw(cuts: Sequence[MonoCut], rng: np.random.Generator) -> list[MonoCut]:
    """Draw utterances for babble and played speech, in the order of their ids."""
    ordered = sorted(cuts, key=lambda cut: cut.id)
    chosen = rng.choice(len(ordered), min(SPEECH_UTTERANCES, len(ordered)), replace=False)
    return [ordered[index] for index in sorted(chosen)]


def _make(task: _Task) -> None:
    """Compute and write a room, or an array of noise or playback."""
    rng = _rng(task.config, task.path.stem)
    if task.placement and task.files:
        room_from_file(task.files[0]).save(task.path)
    elif task.placement:
        arrays = task.config.arrays
        # The front end "microphone" needs one microphone; test sets are also written as arrays.
        single = task.config.frontend == "microphone" and task.pool != "test"
        geometry = "circle-1" if single else arrays[task.number % len(arrays)]
        placement = task.config.placements[task.placement]
        compute_room(placement, task.config, geometry, rng).save(task.path)
    elif task.path.stem.endswith("-noise"):
        _save(_noises(task, rng), task.path)
    else:
        _save(_playback(task, rng), task.path)


def _noises(task: _Task, rng: np.random.Generator) -> list[np.ndarray]:
    """Make the noises of a pool, synthetic or from recordings."""
    length = SECONDS * SAMPLING_RATE
    if task.files:
        return [_excerpt(path, length, rng) for path in task.files]
    samples = [make(rng, length) for make in KINDS.values() for _ in range(VARIANTS)]
    speech = _speech(task)
    return samples + [babble(rng, length, speech) for _ in range(VARIANTS)]


def _playback(task: _Task, rng: np.random.Generator) -> list[np.ndarray]:
    """Make the playback signals of a pool: speech and music."""
    length = SECONDS * SAMPLING_RATE
    speech = _speech(task)
    spoken = [running_speech(rng, length, speech) for _ in range(VARIANTS)]
    return spoken + [music(rng, length) for _ in range(VARIANTS)]


def _speech(task: _Task) -> list[np.ndarray]:
    """Read the speech of a task; unreadable audio is skipped, and reported in its own set."""
    utterances = []
    for cut in task.speech:
        try:
            utterances.append(load_cut_audio(cut, SAMPLING_RATE).numpy())
        except AudioError:
            continue
    return utterances or [np.zeros(SAMPLING_RATE, dtype=np.float32)]


def _excerpt(path: Path, length: int, rng: np.random.Generator) -> np.ndarray:
    """Draw an excerpt of a recording, at unit power."""
    samples = load_audio(path, SAMPLING_RATE).numpy()
    start = int(rng.integers(len(samples)))
    return unit_power(np.resize(np.roll(samples, -start), length))


def _save(sounds: list[np.ndarray], path: Path) -> None:
    """Write sounds as a numpy array."""
    content = io.BytesIO()  # numpy's own writing to files hides why it failed
    np.save(content, np.stack(sounds).astype(np.float32), allow_pickle=False)
    write_atomically(path, content.getvalue())
