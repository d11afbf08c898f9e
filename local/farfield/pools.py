"""Pools of rooms, noise and playback that utterances draw from, computed once and kept as files."""

import io
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from lhotse import MonoCut

from local.farfield import noise as noises
from local.farfield.config import FarfieldConfig
from local.farfield.recordings import noise_files_by_pool, response_files_by_pool, room_from_file
from local.farfield.rooms import SAMPLING_RATE, Room, compute_room
from toolkit.features.audio import AudioError, load_audio
from toolkit.features.cut_audio import load_cut_audio
from toolkit.processes.workers import map_in_processes
from toolkit.storage.files import write_atomically

SECONDS = 20
"""Length of a noise or playback; it is repeated for longer utterances."""
VARIANTS = 3
"""Number of signals of each kind of noise and of playback."""
SPEECH_UTTERANCES = 60
"""Utterances that the babble and the played speech of a pool are made of."""


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
    return Room.load(path)


@lru_cache(8)
def _sounds(path: Path) -> np.ndarray:
    return np.load(path, mmap_mode="r", allow_pickle=False)


def room_path(folder: Path, pool: str, placement: str, number: int) -> Path:
    """Return the path of a room."""
    return folder / f"{pool}-{placement}-{number:03d}.npz"


@dataclass(frozen=True)
class _Task:
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
    """Compute what is missing in `folder`; the same bytes whatever the number of `jobs`.

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
        own = {p: tuple(files[name, p]) for p in config.placements} if files else {}
        rooms[name] = config.train_rooms if name == "train" else config.test_rooms
        rooms[name] = min([rooms[name], *map(len, own.values())])
        tasks += _room_tasks(name, config, folder, rooms[name], own)
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
    tasks = []
    for placement in config.placements:
        for number in range(rooms):
            path = room_path(folder, pool, placement, number)
            own = (files[placement][number],) if files else ()
            tasks.append(_Task(config, pool, path, placement, number, own))
    return tasks


def _rng(config: FarfieldConfig, name: str) -> np.random.Generator:
    return np.random.default_rng([config.seed, zlib.crc32(name.encode())])


def _draw(cuts: Sequence[MonoCut], rng: np.random.Generator) -> list[MonoCut]:
    ordered = sorted(cuts, key=lambda cut: cut.id)
    chosen = rng.choice(len(ordered), min(SPEECH_UTTERANCES, len(ordered)), replace=False)
    return [ordered[index] for index in sorted(chosen)]


def _make(task: _Task) -> None:
    """Compute and write a room, or an array of noise or playback."""
    rng = _rng(task.config, task.path.stem)
    if task.placement and task.files:
        room_from_file(task.files[0]).save(task.path)
    elif task.placement:
        arrays, one = task.config.arrays, task.config.frontend == "microphone"
        # A single microphone is all that is heard, but for the arrays of the test sets.
        single = one and task.pool != "test"
        geometry = "circle-1" if single else arrays[task.number % len(arrays)]
        placement = task.config.placements[task.placement]
        compute_room(placement, task.config, geometry, rng).save(task.path)
    elif task.path.stem.endswith("-noise"):
        _save(_noises(task, rng), task.path)
    else:
        _save(_playback(task, rng), task.path)


def _noises(task: _Task, rng: np.random.Generator) -> list[np.ndarray]:
    length = SECONDS * SAMPLING_RATE
    if task.files:
        return [_excerpt(path, length, rng) for path in task.files]
    made = [make(rng, length) for make in noises.KINDS.values() for _ in range(VARIANTS)]
    speech = _speech(task)
    return made + [noises.babble(rng, length, speech) for _ in range(VARIANTS)]


def _playback(task: _Task, rng: np.random.Generator) -> list[np.ndarray]:
    length = SECONDS * SAMPLING_RATE
    speech = _speech(task)
    spoken = [noises.running_speech(rng, length, speech) for _ in range(VARIANTS)]
    return spoken + [noises.music(rng, length) for _ in range(VARIANTS)]


def _speech(task: _Task) -> list[np.ndarray]:
    """Read the speech of a task; unreadable audio is reported where it is itself an utterance."""
    found = []
    for cut in task.speech:
        try:
            found.append(load_cut_audio(cut, SAMPLING_RATE).numpy())
        except AudioError:
            continue
    return found or [np.zeros(SAMPLING_RATE, dtype=np.float32)]


def _excerpt(path: Path, length: int, rng: np.random.Generator) -> np.ndarray:
    samples = load_audio(path, SAMPLING_RATE).numpy()
    start = int(rng.integers(len(samples)))
    return noises.unit_power(np.resize(np.roll(samples, -start), length))


def _save(sounds: list[np.ndarray], path: Path) -> None:
    content = io.BytesIO()  # numpy's own writing to files hides why it failed
    np.save(content, np.stack(sounds).astype(np.float32), allow_pickle=False)
    write_atomically(path, content.getvalue())
