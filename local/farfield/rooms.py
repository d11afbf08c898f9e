"""Rooms: computed or recorded impulse responses of talkers, noises and devices; diffuse noise."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from scipy import signal

from local.farfield.config import FarfieldConfig, Placement
from toolkit.errors import ToolkitError
from toolkit.features.audio import AudioError, load_audio
from toolkit.features.multichannel.device import isotropic_coherence
from toolkit.storage.files import open_atomically

SAMPLING_RATE = 16000
"""Sampling rate of all far-field audio, in Hz."""

LEAD = 32
"""Sample of a response that means zero delay; fractional delay filters ring before it."""

FADED_DB = 30.0
"""Reflections that the walls alone attenuate by more than this are left out."""

LOUDSPEAKER_METRES = 0.08
"""Distance of the device's own loudspeaker below the middle of its microphones."""

RADIUS_METRES = (0.03, 0.04)
"""Range of the radius of a device's circle of microphones."""

MARGIN_METRES = 0.4
"""Minimum distance of talkers and noise from the walls."""

logger = logging.getLogger("toolkit.farfield")  # runs show the logs of `toolkit`

SUFFIXES = (".wav", ".flac", ".ogg")

POOL_CYCLE = ("train", "test", "train", "val")
"""The pools that files are assigned to, in turn."""

MAX_MICROPHONES = 7
"""Maximum number of microphones: FLAC has at most eight channels, and one is for the playback."""

MAX_SECONDS = 1.0
"""Maximum length of a response; longer ones are truncated."""

DIRECT_SECONDS = 0.0025
"""Length of the direct sound in a response, after its peak."""

WINDOW = 512
"""Samples per frame of the spectra that are mixed."""


class FarfieldError(ToolkitError):
    """Far-field sets that cannot be made."""


@dataclass(frozen=True)
class Room:
    """Impulse responses to a device in one place; M microphones, R samples."""

    talkers: np.ndarray
    """float32[P, M, R]: from each position of a talker; the direct sound reaches the first
    microphone at sample `LEAD`, so that speech keeps its time."""
    noise: np.ndarray
    """float32[M, R]: from the source of the noise."""
    echo: np.ndarray
    """float32[M, R]: from the device's own loudspeaker."""
    t60: float
    """Reverberation time in seconds that the walls were chosen for; 0: not known."""
    metres: np.ndarray
    """float64[P]: from the device to each position of a talker; empty: not known."""
    positions: np.ndarray
    """float64[M, 3]: the microphones, in metres from the middle; empty: not known."""

    def save(self, path: Path) -> None:
        """Write the responses as npz."""
        with open_atomically(path, "wb") as file:
            np.savez(file, **vars(self))

    @classmethod
    def load(cls, path: Path) -> "Room":
        """Read what `save` wrote."""
        with np.load(path, allow_pickle=False) as arrays:
            return cls(**{**arrays, "t60": float(arrays["t60"])})


def compute_room(
    placement: Placement, config: FarfieldConfig, geometry: str, rng: np.random.Generator
) -> Room:
    """Draw a room and positions in it, and compute the responses by the image source method.

    Args:
      geometry: geometry of the microphones, a `Geometry`.
      rng: generator of sizes, walls and positions.

    Raises:
      FarfieldError: pyroomacoustics is missing.
    """
    pra = _pyroomacoustics()
    size = rng.uniform(*config.room_metres)
    t60 = float(rng.uniform(*placement.t60_seconds))
    device = device_position(placement.spot, size, rng)
    around = circle(geometry, rng.uniform(*RADIUS_METRES))
    microphones = device + around
    talkers = [
        _at_distance(device, placement.talker_metres, size, (1.2, 1.75), rng)
        for _ in range(config.talkers)
    ]
    noise = _at_distance(device, placement.noise_metres, size, (0.3, 1.5), rng)
    loudspeaker = device - (0, 0, LOUDSPEAKER_METRES)
    absorption = wall_absorption(size, t60)
    # Each reflection loses -10 log10(1 - absorption) dB. Orders of at most 45 bound the memory in
    # hard-walled rooms.
    order = math.ceil(FADED_DB / (-10 * math.log10(1 - absorption)))
    room = pra.ShoeBox(
        size, SAMPLING_RATE, materials=pra.Material(absorption), max_order=min(order, 45)
    )
    for position in (*talkers, noise, loudspeaker):
        room.add_source(position)
    room.add_microphone_array(microphones.T)
    room.compute_rir()
    offset = pra.constants.get("frac_delay_length") // 2  # delay of all its responses
    length = int(0.75 * t60 * SAMPLING_RATE)  # a decay of 45 dB
    speed = pra.constants.get("c")
    # Talkers' responses start at their direct sound; those of noise and loudspeaker at time 0.
    delays = [np.linalg.norm(talker - microphones[0]) / speed for talker in talkers] + [0.0, 0.0]
    starts = [offset + int(delay * SAMPLING_RATE) for delay in delays]
    responses = [
        _crop([room.rir[m][source] for m in range(len(microphones))], start - LEAD, LEAD + length)
        for source, start in enumerate(starts)
    ]
    metres = np.array([np.linalg.norm(talker - device) for talker in talkers])
    talker_responses, (noise_response, echo_response) = np.stack(responses[:-2]), responses[-2:]
    return Room(talker_responses, noise_response, echo_response, round(t60, 3), metres, around)


def wall_absorption(size: np.ndarray, t60: float) -> float:
    """Return the absorption coefficient of the walls, by Sabine's formula, from 0.02 to 0.95."""
    # T60 = 0.161 V / (S a), with volume V in m^3, surface S in m^2 and absorption a:
    # a = 0.161 V / (S T60).
    length, width, height = size
    surface = 2 * (length * width + length * height + width * height)
    return float(np.clip(0.161 * length * width * height / (surface * t60), 0.02, 0.95))


def device_position(spot: str, size: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw the position of a device in a room: metres from a lower corner, float64[3].

    `centre`: within a tenth of the room's middle; `table`: a quarter to two fifths along both
    walls; `wall`: 30 cm from one wall; `shelf`: 25 cm from one wall, at 1.4 to 1.8 m; `corner`: 25
    cm from two walls. All heights except the shelf's are 0.75 to 1 m.
    """
    share = {"centre": rng.uniform(0.4, 0.6, 2), "table": rng.uniform(0.25, 0.4, 2)}
    place = share.get(spot, rng.uniform(0.3, 0.7, 2)) * size[:2]
    if spot == "wall":
        place[1] = 0.3
    elif spot == "shelf":
        place[1] = 0.25
    elif spot == "corner":
        place[:] = 0.25
    height = rng.uniform(1.4, 1.8) if spot == "shelf" else rng.uniform(0.75, 1.0)
    return np.array([*place, height])


def circle(geometry: str, radius: float) -> np.ndarray:
    """Return the positions of microphones around a device's middle: metres, float64[M, 3]."""
    count = int(geometry.rpartition("-")[2])
    around = count - (geometry == "circle-7")  # its seventh microphone is in the middle
    angles = 2 * np.pi * np.arange(around) / around
    ring = radius * np.stack([np.cos(angles), np.sin(angles), np.zeros(around)], axis=1)
    return np.concatenate([ring, np.zeros((count - around, 3))])


def _at_distance(
    device: np.ndarray,
    metres: tuple[float, float],
    size: np.ndarray,
    heights: tuple[float, float],
    rng: np.random.Generator,
) -> np.ndarray:
    """Draw a position at a distance from the device, or as far as the room allows."""
    distance = rng.uniform(*metres)
    while True:
        for _ in range(50):
            height = rng.uniform(*heights)
            # Horizontal distance, by Pythagoras.
            level = math.sqrt(max(distance**2 - (height - device[2]) ** 2, 0.01))
            angle = rng.uniform(0, 2 * np.pi)
            floor = device[:2] + level * np.array([np.cos(angle), np.sin(angle)])
            if np.all(floor > MARGIN_METRES) and np.all(floor < size[:2] - MARGIN_METRES):
                return np.array([*floor, height])
        distance = distance * 0.95 if distance > 1.0 else distance * 1.1


def _crop(responses: list[np.ndarray], start: int, length: int) -> np.ndarray:
    """Cut the same part from all responses, faded out, with a peak of 1: float32[M, length]."""
    part = np.zeros((len(responses), length), dtype=np.float32)
    for row, response in zip(part, responses, strict=True):
        excerpt = response[max(start, 0) : start + length]
        row[max(-start, 0) :][: len(excerpt)] = excerpt
    # A linear fade over the last tenth, since a sudden end would be heard as a click.
    fade = length // 10
    part[:, -fade:] *= np.linspace(1, 0, fade, dtype=np.float32)
    return part / np.abs(part).max()


def _pyroomacoustics() -> Any:  # an optional module
    """Import pyroomacoustics, with results that do not depend on the number of threads."""
    try:
        import pyroomacoustics as pra
    except ImportError as error:
        raise FarfieldError(
            "simulating rooms needs pyroomacoustics: run `pip install pyroomacoustics`, or give"
            " impulse responses as files (`rooms.responses`)"
        ) from error
    pra.constants.set("num_threads", 1)  # rounding depends on their number
    return pra


def audio_files(folder: Path) -> list[Path]:
    """List the audio files of a folder and its subfolders, sorted by path.

    Hidden files are skipped: some systems keep metadata in files such as `._a.wav`.

    Raises:
      FarfieldError: there are fewer files than the pools need.
    """
    paths = sorted(
        path
        for path in Path(folder).rglob("*")
        if path.suffix.lower() in SUFFIXES and path.name[0] != "." and path.is_file()
    )
    if len(paths) < len(POOL_CYCLE):
        raise FarfieldError(
            f"{folder} contains {len(paths)} audio files, but at least {len(POOL_CYCLE)} are"
            " needed, because training and test must not share files"
        )
    return paths


def noise_files_by_pool(folder: Path) -> dict[str, list[Path]]:
    """Assign noise recordings to the pools."""
    return _assign(audio_files(folder))


def response_files_by_pool(config: FarfieldConfig) -> dict[tuple[str, str], list[Path]]:
    """Assign impulse responses to (pool, placement): the clearest to the first placement.

    A folder counts as a room and goes to one pool as a whole, if that gives each pool as many rooms
    as there are placements: with fewer, training would have other kinds of rooms than the tests.
    Otherwise the files of each placement are assigned one by one.

    Raises:
      FarfieldError: there are fewer responses than the placements and pools need.
    """
    files = audio_files(config.responses)
    files.sort(key=lambda path: (-clarity(_response(path)[0]), path))
    names = list(config.placements)
    if len(files) < len(names) * len(POOL_CYCLE):
        raise FarfieldError(
            f"{config.responses} contains {len(files)} impulse responses; {len(names)} placements"
            f" need at least {len(names) * len(POOL_CYCLE)}"
        )
    # `files` are sorted by clarity, and so are the files of each pool; equal parts of these go to
    # the placements.
    pools = _assign_folders(files)
    if min(len({path.parent for path in pool_files}) for pool_files in pools.values()) >= len(
        names
    ):
        parts = {pool: _split_evenly(pool_files, len(names)) for pool, pool_files in pools.items()}
        return {
            (p, name): pool_files[n]
            for p, pool_files in parts.items()
            for n, name in enumerate(names)
        }
    logger.warning(
        "%s: there are too few folders to use separate folders for train, val and test, so these "
        "sets may share rooms",
        config.responses,
    )
    placed = zip(names, _split_evenly(files, len(names)), strict=True)
    return {
        (pool, name): pool_files
        for name, part in placed
        for pool, pool_files in _assign(part).items()
    }


def clarity(response: np.ndarray) -> float:
    """Return C50 in dB: the energy in the 50 ms from the peak on, relative to that of the rest."""
    energy = np.square(response[int(np.abs(response).argmax()) :], dtype=np.float64)
    early = energy[: SAMPLING_RATE // 20].sum()
    return float(10 * np.log10(early / max(energy[SAMPLING_RATE // 20 :].sum(), 1e-12)))


def room_from_file(path: Path) -> Room:
    """Make a room from a recorded response, whose channels are the microphones.

    The file holds the response of the talker. The response of the noise is the late part of it. The
    echo path of the loudspeaker is a click, the same at all microphones, and a tenth of the late
    part.
    """
    response = _response(path)
    first = int(np.abs(response[0]).argmax())
    # Shift the direct sound, the largest sample of the first microphone, to sample LEAD.
    talker = np.zeros((len(response), LEAD + int(MAX_SECONDS * SAMPLING_RATE)), dtype=np.float32)
    part = response[:, max(first - LEAD, 0) : first - LEAD + talker.shape[1]]
    start = max(LEAD - first, 0)
    talker[:, start : start + part.shape[1]] = part
    talker /= np.abs(talker).max()
    late = talker.copy()
    late[:, : LEAD + int(DIRECT_SECONDS * SAMPLING_RATE)] = 0.0
    # A file has one source. Noise comes from everywhere: its response lacks the direct sound. The
    # loudspeaker is close: direct sound of 1, reverberation 20 dB lower than the talker's.
    echo = 0.1 * late
    echo[:, LEAD] += 1.0
    noise = late if np.any(late) else talker
    return Room(talker[None], noise, echo, 0.0, np.empty(0), np.empty((0, 3)))


def _response(path: Path) -> np.ndarray:
    """Read a response: float32[M, R].

    Raises:
      FarfieldError: the file cannot be read, or its first channel is silent.
    """
    try:
        channels = min(soundfile.info(str(path)).channels, MAX_MICROPHONES)
        rows = [load_audio(path, SAMPLING_RATE, channel=c).numpy() for c in range(channels)]
    except (soundfile.SoundFileError, AudioError) as error:
        raise FarfieldError(f"{path} is not an impulse response ({error}): remove it") from error
    if not np.any(rows[0]):
        raise FarfieldError(f"{path} is not an impulse response (it is silent): remove it")
    return np.stack(rows)


def _split_evenly(files: Sequence[Path], count: int) -> list[Sequence[Path]]:
    """Split files into `count` parts of nearly equal length."""
    ends = [number * len(files) // count for number in range(count + 1)]
    return [files[start:end] for start, end in pairwise(ends)]


def _assign_folders(files: Sequence[Path]) -> dict[str, list[Path]]:
    """Assign whole folders, the largest first, to the pool that is furthest below its share.

    Among folders of equal size, the one with the clearest file is first. Files keep their order.
    """
    folders: dict[Path, list[Path]] = {}
    for path in files:
        folders.setdefault(path.parent, []).append(path)
    pools: dict[str, set[Path]] = {pool: set() for pool in POOL_CYCLE}
    for room_files in sorted(folders.values(), key=len, reverse=True):
        pool = min(pools, key=lambda name: len(pools[name]) / POOL_CYCLE.count(name))
        pools[pool].update(room_files)
    return {
        pool: [path for path in files if path in room_files] for pool, room_files in pools.items()
    }


def _assign(files: Sequence[Path]) -> dict[str, list[Path]]:
    """Assign files to the pools in turn."""
    return {
        pool: [
            path
            for number, path in enumerate(files)
            if POOL_CYCLE[number % len(POOL_CYCLE)] == pool
        ]
        for pool in POOL_CYCLE
    }


def isotropic(sounds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Mix independent sounds into spherically isotropic noise (Habets, Cohen and Gannot, 2008).

    At each frequency, the spectra are multiplied by the Cholesky factor of the coherence matrix of
    such noise. Two microphones at a distance d have the coherence sin(k d) / (k d), with the
    wavenumber k.

    Args:
      sounds: [M, S], one for each microphone, of equal power.
      positions: [M, 3] in metres.

    Returns:
      float32[M, S].
    """
    samples = sounds.shape[1]
    frequencies, _, spectra = signal.stft(sounds, SAMPLING_RATE, nperseg=WINDOW)  # [M, F, T]
    coherence = isotropic_coherence(positions, frequencies)  # [F, M, M]
    # At 0 Hz all coherences are 1 and the matrix is singular: add 1e-6 to the diagonal.
    factors = np.linalg.cholesky(coherence + 1e-6 * np.eye(len(positions)))
    mixed = factors.astype(spectra.dtype) @ spectra.transpose(1, 0, 2)  # [F, M, T]
    noise = signal.istft(mixed.transpose(1, 0, 2), SAMPLING_RATE, nperseg=WINDOW)[1]
    return noise[:, :samples].astype(np.float32)
