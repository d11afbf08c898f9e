"""Settings of the far-field sets: device placements, rooms, amounts of speech."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from toolkit.config.fields import (
    NonNegative,
    Positive,
    PositiveInt,
    ProperShare,
    Range,
    Settings,
    Share,
)
from toolkit.features.config import DeviceConfig

Frontend = Literal["device", "microphone"]
Geometry = Literal["circle-4", "circle-6", "circle-7"]
"""Number of microphones of a device on a circle; `circle-7` has the seventh at the centre."""
Spot = Literal["centre", "table", "wall", "shelf", "corner"]
"""Positions of a device: see `local.farfield.rooms.device_position`."""


@dataclass(frozen=True)
class Placement(Settings):
    """Position of the device and conditions there; pairs are (lowest, highest)."""

    spot: Spot
    t60_seconds: tuple[Annotated[float, Range(0.1)], float]
    """Reverberation time."""
    talker_metres: tuple[Annotated[float, Range(0.1)], float]
    """Distance from the talker to the device."""
    noise_metres: tuple[Annotated[float, Range(0.1)], float]
    """Distance from the source of the noise to the device."""
    snr_db: tuple[float, float]
    """Ratio of reverberant speech to noise at the first microphone, over the whole utterance."""
    playback_share: Share
    """Share of the utterances during which the device plays something."""
    echo_db: tuple[float, float]
    """Ratio of reverberant speech to the echo of the device's playback."""

    def check(self) -> None:
        """Refuse pairs whose first value is higher than the second."""
        for name in ("t60_seconds", "talker_metres", "noise_metres", "snr_db", "echo_db"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(
                    f"`{name}` is ({low}, {high}), but its first value must not exceed the second"
                )


@dataclass(frozen=True)
class FarfieldConfig(Settings):
    """Settings of far-field sets made from a clean corpus (C32: amounts and placements)."""

    labelled_hours: Positive = 0.5
    """Hours of labelled training speech (C32: 7,000 h), drawn at random from the labelled speakers;
    fewer if they have less speech. All placements are equally likely."""
    unlabelled_hours: Positive = 2.5
    """Hours of unlabelled speech (C32: 1,000,000 h)."""
    val_hours: Positive = 0.1
    """Hours of validation speech (C32: about 1 h), of all placements."""
    test_hours: Positive = 0.1
    """Hours of test speech per placement."""
    array_hours: NonNegative = 0.05
    """Hours of each placement's test speech that are also written with all microphones and the
    playback channel, for array front ends; 0: none."""
    labelled_speakers: ProperShare = 0.4
    """Share of the training speakers whose speech is labelled."""
    shared_speakers: bool = False
    """Take unlabelled speech from the labelled speakers, too, but never the same utterances: as in
    a fleet of devices where some utterances are transcribed."""
    test_placements: Annotated[int, Range(1, 5)] = 1
    """Number of placements of each test utterance. 1: no two test sets have an utterance in common;
    5: all test sets have the same utterances, for corpora with little test speech."""
    val: str = "dev*"
    """Pattern of the source's parts that become val. If no part matches, speakers are held out of
    training. Parts that are neither for training nor for val or test are left out."""
    test: str = "test*"
    """Pattern of the source's parts that become the test sets. If no part matches, speakers are
    held out of training."""
    val_speakers: PositiveInt = 2
    """Number of speakers held out for val if no part of the source matches `val`."""
    test_speakers: PositiveInt = 3
    """Number of speakers held out for the test sets if no part of the source matches `test`."""
    dp1: Placement = Placement(
        "centre", (0.2, 0.3), (0.6, 1.2), (2.0, 4.0), (15.0, 25.0), 0.2, (10.0, 20.0)
    )
    """Placement in the middle of the room, close to the talker; the easiest."""
    dp2: Placement = Placement(
        "table", (0.25, 0.4), (1.0, 2.0), (1.5, 3.0), (10.0, 20.0), 0.3, (5.0, 15.0)
    )
    """Placement on a table, away from the middle."""
    dp3: Placement = Placement(
        "wall", (0.35, 0.5), (1.5, 2.5), (1.0, 2.5), (6.0, 14.0), 0.4, (2.0, 10.0)
    )
    """Placement against a wall, at a medium distance."""
    dp4: Placement = Placement(
        "shelf", (0.4, 0.55), (1.8, 3.0), (0.8, 2.0), (4.0, 12.0), 0.5, (0.0, 8.0)
    )
    """Placement high on a shelf, with noise nearby."""
    dp5: Placement = Placement(
        "corner", (0.5, 0.7), (2.5, 4.5), (0.6, 1.5), (0.0, 8.0), 0.5, (-3.0, 6.0)
    )
    """Placement in a corner beside the source of the noise, with the talker far away; the
    hardest."""
    room_metres: tuple[tuple[float, float, float], tuple[float, float, float]] = (
        (3.5, 3.0, 2.4),
        (7.5, 6.0, 3.0),
    )
    """Smallest and largest length, width and height of rooms."""
    train_rooms: PositiveInt = 8
    """Number of rooms per placement for training speech."""
    test_rooms: PositiveInt = 3
    """Number of rooms per placement for val; the test sets have the same number of other rooms."""
    talkers: Annotated[int, Range(1, 1000)] = 3
    """Number of talkers' positions in a room."""
    arrays: tuple[Geometry, ...] = ("circle-4", "circle-7")
    """Geometries of the devices' microphones, used in turn from room to room."""
    frontend: Frontend = "device"
    """Front end of every set: that of a device (C1), or the first microphone alone."""
    device: DeviceConfig = DeviceConfig()
    """Settings of the front end "device": beams, echo canceller, choice of a beam."""
    talker_db_spl: tuple[float, float] = (57.0, 67.0)
    """Range of the talkers' level at 1 m; it falls by 6 dB with each doubling of the distance."""
    responses: Path | None = None
    """Folder of room impulse responses to use instead of computed ones; subfolders are searched,
    too. The channels of a file are the microphones. The clearest responses are for DP1. Put the
    files of each room into a folder of their own: if there are enough folders, each goes as a whole
    to training, val or test; otherwise training, val and test may share rooms. None: responses are
    computed."""
    noise: Path | None = None
    """Folder of noise recordings, searched with its subfolders; None: synthetic noise, and
    babble of the corpus's own speakers."""
    seed: int = 1
    """Random seed of rooms, noise and the conditions of each utterance."""

    def check(self) -> None:
        """Refuse ranges whose first value is the higher one, and devices without microphones."""
        low, high = self.talker_db_spl
        if low > high:
            raise ValueError(
                f"`talker_db_spl` is ({low}, {high}), but its first value must not exceed the "
                "second"
            )
        if not self.arrays:
            raise ValueError(
                f"`arrays` is empty: set one or more of {', '.join(get_args(Geometry))}"
            )
        small, large = self.room_metres
        if min(small) < 2.0 or any(a > b for a, b in zip(small, large, strict=True)):
            raise ValueError(
                "`room_metres` must be (smallest room, largest room), with at least 2 m in each "
                "dimension"
            )

    @property
    def hours(self) -> dict[str, float]:
        """Requested hours by set, without the sets of arrays."""
        speech = {"train": self.labelled_hours, "unlabelled": self.unlabelled_hours}
        tests = dict.fromkeys(self.placements, self.test_hours)
        return {**speech, "val": self.val_hours, **tests}

    @property
    def placements(self) -> dict[str, Placement]:
        """Placements by the name of their test set, from the easiest to the hardest."""
        return {f"DP{n}": getattr(self, f"dp{n}") for n in range(1, 6)}
