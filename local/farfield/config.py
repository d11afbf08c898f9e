"""Settings of the far-field sets: device placements, rooms, amounts of speech."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from toolkit.features.multichannel.device import DeviceConfig

Frontend = Literal["device", "microphone"]
GEOMETRIES = ("circle-4", "circle-6", "circle-7")
"""Microphones of a device: so many on a circle, the seventh of `circle-7` at its centre."""
SPOTS = ("centre", "table", "wall", "shelf", "corner")
"""Positions of a device: see `local.farfield.rooms.device_position`."""


@dataclass(frozen=True)
class Placement:
    """Position of the device and conditions there; pairs are (lowest, highest)."""

    spot: str
    """One of `SPOTS`."""
    t60_seconds: tuple[float, float]
    """Reverberation time."""
    talker_metres: tuple[float, float]
    """Distance from the talker to the device."""
    noise_metres: tuple[float, float]
    """Distance from the source of the noise to the device."""
    snr_db: tuple[float, float]
    """Ratio of reverberant speech to noise at the first microphone, over the whole utterance."""
    playback_share: float
    """Share of the utterances during which the device plays something."""
    echo_db: tuple[float, float]
    """Ratio of reverberant speech to the echo of what the device plays."""

    def __post_init__(self) -> None:
        if self.spot not in SPOTS:
            raise ValueError(f"spot is {self.spot!r}: one of {', '.join(SPOTS)}")
        for name in ("t60_seconds", "talker_metres", "noise_metres", "snr_db", "echo_db"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name} must be (low, high), not ({low}, {high})")
        if min(self.t60_seconds[0], self.talker_metres[0], self.noise_metres[0]) < 0.1:
            raise ValueError("reverberation times and distances must be at least 0.1")
        if not 0 <= self.playback_share <= 1:
            raise ValueError("playback_share must be from 0 to 1")


@dataclass(frozen=True)
class FarfieldConfig:
    """Far-field sets made of a clean corpus (C32: amounts and placements)."""

    labelled_hours: float = 0.5
    """Hours of labelled training speech (C32: 7,000 h), drawn evenly from its speakers; there may
    be fewer. All placements are equally likely."""
    unlabelled_hours: float = 2.5
    """Hours of unlabelled speech (C32: 1,000,000 h)."""
    val_hours: float = 0.1
    """Hours of validation speech (C32: about 1 h), of all placements."""
    test_hours: float = 0.1
    """Hours of test speech per placement."""
    array_hours: float = 0.05
    """Hours of every placement's test speech that are written with all microphones and the
    playback channel too, for array front ends; 0: none."""
    labelled_speakers: float = 0.4
    """Share of the training speakers whose speech is labelled."""
    shared_speakers: bool = False
    """Take unlabelled speech from the labelled speakers too, as in a fleet of devices some of whose
    utterances are transcribed. Never the same utterances."""
    test_placements: int = 1
    """Placements of each test utterance. 1: no two test sets have an utterance in
    common; 5: all have the same ones, for corpora with little test speech."""
    val: str = "dev*"
    """Pattern of the source's parts that become val. Where none matches, speakers are held out of
    training. Parts for neither training, val nor test are left out."""
    test: str = "test*"
    """Pattern of the source's parts that become the test sets; likewise."""
    val_speakers: int = 2
    """Speakers held out for val where the source has no such part."""
    test_speakers: int = 3
    """Speakers held out for the test sets where the source has no such part."""
    dp1: Placement = Placement(
        "centre", (0.2, 0.3), (0.6, 1.2), (2.0, 4.0), (15.0, 25.0), 0.2, (10.0, 20.0)
    )
    """In the middle of the room, close to the talker; the easiest."""
    dp2: Placement = Placement(
        "table", (0.25, 0.4), (1.0, 2.0), (1.5, 3.0), (10.0, 20.0), 0.3, (5.0, 15.0)
    )
    """On a table, away from the middle."""
    dp3: Placement = Placement(
        "wall", (0.35, 0.5), (1.5, 2.5), (1.0, 2.5), (6.0, 14.0), 0.4, (2.0, 10.0)
    )
    """Against a wall."""
    dp4: Placement = Placement(
        "shelf", (0.4, 0.55), (1.8, 3.0), (0.8, 2.0), (4.0, 12.0), 0.5, (0.0, 8.0)
    )
    """High on a shelf, with noise nearby."""
    dp5: Placement = Placement(
        "corner", (0.5, 0.7), (2.5, 4.5), (0.6, 1.5), (0.0, 8.0), 0.5, (-3.0, 6.0)
    )
    """In a corner beside the source of the noise, the talker far away; the hardest."""
    room_metres: tuple[tuple[float, float, float], tuple[float, float, float]] = (
        (3.5, 3.0, 2.4),
        (7.5, 6.0, 3.0),
    )
    """Smallest and largest length, width and height of rooms."""
    train_rooms: int = 8
    """Rooms per placement for training speech."""
    test_rooms: int = 3
    """Rooms per placement for val, and as many others for the test sets."""
    talkers: int = 3
    """Positions of talkers in a room."""
    arrays: tuple[str, ...] = ("circle-4", "circle-7")
    """Microphones of the devices, in turn from room to room: of `GEOMETRIES`."""
    radius_metres: tuple[float, float] = (0.03, 0.04)
    """Range of the circles' radius."""
    frontend: Frontend = "device"
    """What every set is heard through: the front end of a device (C1), or its first microphone as
    it is."""
    device: DeviceConfig = DeviceConfig()
    """Beams, echo canceller and choice of a beam of `frontend`."""
    lead_seconds: float = 2.0
    """Noise and playback that the device hears before an utterance begins."""
    diffuse: tuple[float, float] = (0.3, 0.7)
    """Range of the share of the noise's power that comes from all sides instead of its source; 0
    where the microphones' positions are not known."""
    talker_db_spl: tuple[float, float] = (57.0, 67.0)
    """Range of the talkers' level at a distance of 1 m; it falls by 6 dB for each doubling."""
    self_noise_db_spl: float = 30.0
    """Level of the microphones' own noise."""
    path_changes: float = 0.3
    """Share of the utterances with playback during which somebody moves beside the device, so that
    the path of the echo changes."""
    responses: Path | None = None
    """Folder of room impulse responses, searched with its subfolders, to use instead of computed
    ones: the channels of a file are the microphones; the clearest are DP1's. Where there are enough
    folders, each goes as a whole to training, val or test: put the files of a room into one.
    Otherwise these may share rooms. None: computed."""
    noise: Path | None = None
    """Folder of noise recordings, searched with its subfolders; None: synthetic noise, and
    babble of the corpus's own speakers."""
    level_dbfs: tuple[float, float] = (-38.0, -24.0)
    """Range of the level at the first microphone, relative to full scale."""
    encoding: str = "FLAC"
    """Format of the audio written, 16 bit: `FLAC` or `WAV`."""
    days: int = 90
    """Span of the simulated creation times of unlabelled utterances."""
    seed: int = 1
    """Random seed of rooms, noise and the conditions of each utterance."""

    def __post_init__(self) -> None:
        for name in ("labelled_hours", "unlabelled_hours", "val_hours", "test_hours"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive")
        if self.array_hours < 0:
            raise ValueError("array_hours must not be negative")
        if not 0 < self.labelled_speakers < 1:
            raise ValueError("labelled_speakers must be between 0 and 1")
        if not 1 <= self.test_placements <= len(self.placements):
            raise ValueError(f"test_placements must be 1 to {len(self.placements)}")
        for name in ("val_speakers", "test_speakers", "train_rooms", "test_rooms", "talkers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        unknown = sorted(set(self.arrays) - set(GEOMETRIES))
        if unknown or not self.arrays:
            raise ValueError(f"arrays must be some of {', '.join(GEOMETRIES)}, not {unknown}")
        if not 0.005 <= self.radius_metres[0] <= self.radius_metres[1] <= 0.2:
            raise ValueError("radius_metres must be (low, high) from 0.005 to 0.2")
        small, large = self.room_metres
        if min(small) < 2.0 or any(a > b for a, b in zip(small, large, strict=True)):
            raise ValueError("room_metres must be (smallest, largest), at least 2 m each way")
        if self.level_dbfs[0] > self.level_dbfs[1] or self.level_dbfs[1] > -10:
            raise ValueError("level_dbfs must be (low, high), at most -10")
        if self.frontend not in get_args(Frontend):
            raise ValueError(f"frontend is {self.frontend!r}: {' or '.join(get_args(Frontend))}")
        if self.lead_seconds < 0:
            raise ValueError("lead_seconds must not be negative")
        if not 0 <= self.diffuse[0] <= self.diffuse[1] <= 1 or not 0 <= self.path_changes <= 1:
            raise ValueError("diffuse must be (low, high), it and path_changes from 0 to 1")
        if self.talker_db_spl[0] > self.talker_db_spl[1]:
            raise ValueError("talker_db_spl must be (low, high)")
        if self.encoding not in ("FLAC", "WAV"):
            raise ValueError(f"encoding is {self.encoding!r}: FLAC or WAV")
        if self.days < 1:
            raise ValueError("days must be at least 1")

    @property
    def hours(self) -> dict[str, float]:
        """Hours asked for by set, without the sets of arrays."""
        speech = {"train": self.labelled_hours, "unlabelled": self.unlabelled_hours}
        tests = dict.fromkeys(self.placements, self.test_hours)
        return {**speech, "val": self.val_hours, **tests}

    @property
    def placements(self) -> dict[str, Placement]:
        """Placements by the name of their test set, from the easiest to the hardest."""
        return {f"DP{n}": getattr(self, f"dp{n}") for n in range(1, 6)}
