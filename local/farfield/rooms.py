"""Rooms of the far-field sets: impulse responses from talkers, noise and loudspeaker."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from local.farfield.config import FarfieldConfig, Placement
from toolkit.errors import ToolkitError
from toolkit.storage.files import open_atomically

SAMPLING_RATE = 16000
"""Sampling rate of all far-field audio, in Hz."""
LEAD = 32
"""Sample of a response that stands for no delay: fractional delay filters ring before it."""
FADED_DB = 30.0
"""Reflections that the walls alone have attenuated by more than this are left out."""
LOUDSPEAKER_METRES = 0.08
"""The device's own loudspeaker is this far below the middle of its microphones."""
MARGIN_METRES = 0.4
"""Talkers and noise keep this far from walls."""


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
        with np.load(path, allow_pickle=False) as found:
            return cls(**{**found, "t60": float(found["t60"])})


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
    around = circle(geometry, rng.uniform(*config.radius_metres))
    microphones = device + around
    talkers = [
        _at_distance(device, placement.talker_metres, size, (1.2, 1.75), rng)
        for _ in range(config.talkers)
    ]
    noise = _at_distance(device, placement.noise_metres, size, (0.3, 1.5), rng)
    loudspeaker = device - (0, 0, LOUDSPEAKER_METRES)
    absorption = wall_absorption(size, t60)
    order = math.ceil(FADED_DB / (-10 * math.log10(1 - absorption)))
    room = pra.ShoeBox(
        size, SAMPLING_RATE, materials=pra.Material(absorption), max_order=min(order, 45)
    )
    for position in (*talkers, noise, loudspeaker):
        room.add_source(position)
    room.add_microphone_array(microphones.T)
    room.compute_rir()
    offset = pra.constants.get("frac_delay_length") // 2  # delay of all its responses
    length = int(0.75 * t60 * SAMPLING_RATE)
    speed = pra.constants.get("c")
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
    length, width, height = size
    surface = 2 * (length * width + length * height + width * height)
    return float(np.clip(0.161 * length * width * height / (surface * t60), 0.02, 0.95))


def device_position(spot: str, size: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw the position of a device in a room: metres from a lower corner, float64[3].

    `centre`: within a tenth of the room's middle; `table`: a quarter to two fifths along both
    walls; `wall`: 30 cm from one wall; `shelf`: 25 cm from one wall, at 1.4 to 1.8 m; `corner`: 25
    cm from two walls. Heights but the shelf's are 0.75 to 1 m.
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
    around = count - (geometry == "circle-7")
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
            level = math.sqrt(max(distance**2 - (height - device[2]) ** 2, 0.01))
            angle = rng.uniform(0, 2 * np.pi)
            floor = device[:2] + level * np.array([np.cos(angle), np.sin(angle)])
            if np.all(floor > MARGIN_METRES) and np.all(floor < size[:2] - MARGIN_METRES):
                return np.array([*floor, height])
        distance = distance * 0.95 if distance > 1.0 else distance * 1.1


def _crop(responses: list[np.ndarray], start: int, length: int) -> np.ndarray:
    """Cut the same part from every microphone's response, fade its end: float32[M, length]."""
    part = np.zeros((len(responses), length), dtype=np.float32)
    for row, response in zip(part, responses, strict=True):
        found = response[max(start, 0) : start + length]
        row[max(-start, 0) :][: len(found)] = found
    fade = length // 10
    part[:, -fade:] *= np.linspace(1, 0, fade, dtype=np.float32)
    return part / np.abs(part).max()


def _pyroomacoustics() -> Any:  # an optional module
    try:
        import pyroomacoustics as pra
    except ImportError as error:
        raise FarfieldError(
            "computing rooms needs pyroomacoustics: pip install pyroomacoustics, or give impulse"
            " responses as files"
        ) from error
    pra.constants.set("num_threads", 1)  # rounding depends on their number
    return pra
