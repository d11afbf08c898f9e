"""Rooms and noise from recordings: the files of the train, val and test pools."""

import logging
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import soundfile

from local.farfield.config import FarfieldConfig
from local.farfield.rooms import LEAD, SAMPLING_RATE, FarfieldError, Room
from toolkit.features.audio import AudioError, load_audio

logger = logging.getLogger("toolkit.farfield")  # runs show the logs of `toolkit`

SUFFIXES = (".wav", ".flac", ".ogg")
POOL_CYCLE = ("train", "test", "train", "val")
"""The pools that files are assigned to, in turn."""
MAX_MICROPHONES = 7
"""FLAC has at most eight channels, and one is for the playback."""
MAX_SECONDS = 1.0
"""Longer responses are truncated."""
DIRECT_SECONDS = 0.0025
"""Length of the direct sound in a response, after its peak."""


def audio_files(folder: Path) -> list[Path]:
    """List a folder's audio files, with those of its subfolders, by name.

    Hidden files are none: systems keep notes beside files in `._a.wav` and the like.

    Raises:
      FarfieldError: fewer than the pools need.
    """
    found = sorted(
        path
        for path in Path(folder).rglob("*")
        if path.suffix.lower() in SUFFIXES and path.name[0] != "." and path.is_file()
    )
    if len(found) < len(POOL_CYCLE):
        raise FarfieldError(
            f"{folder} holds {len(found)} audio files; training and test must not share any, so"
            f" at least {len(POOL_CYCLE)} are needed"
        )
    return found


def noise_files_by_pool(folder: Path) -> dict[str, list[Path]]:
    """Assign noise recordings to the pools."""
    return _assign(audio_files(folder))


def response_files_by_pool(config: FarfieldConfig) -> dict[tuple[str, str], list[Path]]:
    """Assign impulse responses to (pool, placement): the clearest to the first placement.

    A folder counts as a room and goes to one pool as a whole, if that gives each pool as many rooms
    as there are placements: with fewer, training would have other kinds of rooms than the tests.
    Otherwise the files of each placement are assigned one by one.

    Raises:
      FarfieldError: fewer than the placements and pools need.
    """
    files = audio_files(config.responses)
    files.sort(key=lambda path: (-clarity(_response(path)[0]), path))
    names = list(config.placements)
    if len(files) < len(names) * len(POOL_CYCLE):
        raise FarfieldError(
            f"{config.responses} holds {len(files)} impulse responses; {len(names)} placements need"
            f" at least {len(names) * len(POOL_CYCLE)}"
        )
    pools = _assign_folders(files)
    if min(len({path.parent for path in own}) for own in pools.values()) >= len(names):
        parts = {pool: _split_evenly(own, len(names)) for pool, own in pools.items()}
        return {(p, name): own[n] for p, own in parts.items() for n, name in enumerate(names)}
    logger.warning(
        "%s: too few folders to assign whole ones to train, val and test, which may share rooms",
        config.responses,
    )
    placed = zip(names, _split_evenly(files, len(names)), strict=True)
    return {(pool, name): own for name, part in placed for pool, own in _assign(part).items()}


def clarity(response: np.ndarray) -> float:
    """C50 in dB: the energy of the first 50 ms from the peak on over that of the rest."""
    energy = np.square(response[int(np.abs(response).argmax()) :], dtype=np.float64)
    early = energy[: SAMPLING_RATE // 20].sum()
    return float(10 * np.log10(early / max(energy[SAMPLING_RATE // 20 :].sum(), 1e-12)))


def room_from_file(path: Path) -> Room:
    """Make a room from a recorded response, whose channels are the microphones.

    It is the talker's response. A file has none for noise, which gets the late part of the talker's
    response, and none for a loudspeaker, whose echo path is a click, the same at all microphones,
    and a tenth of the late part.
    """
    response = _response(path)
    first = int(np.abs(response[0]).argmax())
    talker = np.zeros((len(response), LEAD + int(MAX_SECONDS * SAMPLING_RATE)), dtype=np.float32)
    part = response[:, max(first - LEAD, 0) : first - LEAD + talker.shape[1]]
    start = max(LEAD - first, 0)
    talker[:, start : start + part.shape[1]] = part
    talker /= np.abs(talker).max()
    late = talker.copy()
    late[:, : LEAD + int(DIRECT_SECONDS * SAMPLING_RATE)] = 0.0
    echo = 0.1 * late
    echo[:, LEAD] += 1.0
    noise = late if np.any(late) else talker
    return Room(talker[None], noise, echo, 0.0, np.empty(0), np.empty((0, 3)))


def _response(path: Path) -> np.ndarray:
    """Read a response: float32[M, R].

    Raises:
      FarfieldError: it cannot be read, or its first channel is silent.
    """
    try:
        channels = min(soundfile.info(str(path)).channels, MAX_MICROPHONES)
        rows = [load_audio(path, SAMPLING_RATE, channel=c).numpy() for c in range(channels)]
    except (soundfile.SoundFileError, AudioError) as error:
        raise FarfieldError(f"{path} is no impulse response ({error}): remove it") from error
    if not np.any(rows[0]):
        raise FarfieldError(f"{path} is no impulse response (it is silent): remove it")
    return np.stack(rows)


def _split_evenly(files: Sequence[Path], count: int) -> list[Sequence[Path]]:
    ends = [number * len(files) // count for number in range(count + 1)]
    return [files[start:end] for start, end in pairwise(ends)]


def _assign_folders(files: Sequence[Path]) -> dict[str, list[Path]]:
    """Assign whole folders, the largest first, to the pool that is furthest below its share.

    Of folders of equal size, the one with the clearest file is first; files keep their order.
    """
    folders: dict[Path, list[Path]] = {}
    for path in files:
        folders.setdefault(path.parent, []).append(path)
    pools: dict[str, set[Path]] = {pool: set() for pool in POOL_CYCLE}
    for own in sorted(folders.values(), key=len, reverse=True):
        pool = min(pools, key=lambda name: len(pools[name]) / POOL_CYCLE.count(name))
        pools[pool].update(own)
    return {pool: [path for path in files if path in own] for pool, own in pools.items()}


def _assign(files: Sequence[Path]) -> dict[str, list[Path]]:
    return {
        pool: [
            path
            for number, path in enumerate(files)
            if POOL_CYCLE[number % len(POOL_CYCLE)] == pool
        ]
        for pool in POOL_CYCLE
    }
