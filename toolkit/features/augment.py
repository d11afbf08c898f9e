"""Augmented copies of training utterances: speed, reverberation and noise.

A copy is a cut of its own, with transforms in its recording, from which `extract` makes features
as from any other. Its id is the original's with a suffix: `_sp0.9` for the speed (as lhotse has
it), then `_aug` where noise or rooms are configured. The speaker has the same suffix, so that the
causal mean is that of the speaker at one speed. Copies need no alignment of their own, see
`toolkit.align.store`.
"""

import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import soundfile

from toolkit.corpus.audio_file import AUDIO_SUFFIXES, open_audio
from toolkit.corpus.media import MEDIA_SUFFIXES
from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    from lhotse.cut import MonoCut

ROUND_RATE = 16000
"""Hz, to which audio is resampled before its speed is changed where its own rate, such as 11,025,
has too few divisors."""
_SUFFIX = re.compile(r"(?:_sp(\d+(?:\.\d+)?)(_aug)?|_aug)$")


class AugmentError(ToolkitError):
    """Noises or impulse responses that cannot be used."""


@dataclass(frozen=True)
class AugmentConfig:
    """Which augmented copies of the training utterances are added to the originals."""

    speeds: tuple[float, ...] = ()
    """A copy of every utterance for each of these factors; (0.9, 1.1) is the usual three-way speed
    perturbation. None in the paper. 1 is allowed with `noise` or `rooms`."""
    noise: Path | None = None
    """Folder of noise recordings, searched with its subfolders; None: no noise."""
    noise_share: float = 0.8
    """Share of the copies that get noise."""
    snr: tuple[float, float] = (5.0, 20.0)
    """Lowest and highest ratio of speech to noise in dB."""
    rooms: Path | None = None
    """Folder of room impulse responses, searched with its subfolders; None: no reverberation."""
    rooms_share: float = 0.5
    """Share of the copies that are reverberated."""
    seed: int = 0
    """Random seed; with a copy's id it decides what the copy gets."""

    def __post_init__(self) -> None:
        if len(set(self.speeds)) < len(self.speeds):
            raise ValueError(f"speeds are {self.speeds}, needs to be different factors")
        for speed in self.speeds:
            if not 0.5 <= speed <= 2:
                raise ValueError(f"a speed is {speed}, needs to be from 0.5 to 2")
            if speed == 1 and not self.degrades:
                raise ValueError("speed 1 without noise or rooms would copy the originals")
        if self.degrades and not self.speeds:
            raise ValueError("noise and rooms need speeds: (1.0,) for copies at the same speed")
        for name in ("noise_share", "rooms_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}, needs to be from 0 to 1")
        if len(self.snr) != 2 or self.snr[0] > self.snr[1]:
            raise ValueError(f"snr is {self.snr}, needs to be the lowest and the highest in dB")

    @property
    def degrades(self) -> bool:
        """Whether copies get noise or reverberation."""
        return self.noise is not None or self.rooms is not None


def augmented(cuts: "Iterable[MonoCut]", config: AugmentConfig) -> "Iterator[MonoCut]":
    """Yield the augmented copies of cuts, for `extract`.

    What a copy gets depends on the seed and its id alone.

    Args:
      cuts: of one supervision each; gone through once for each speed.
      config: which copies to make.

    Raises:
      AugmentError: a folder of noises or rooms without audio, or with damaged audio.
    """
    cuts = list(cuts)
    noises = [] if config.noise is None else _audio_files(config.noise)
    rooms = [] if config.rooms is None else _audio_files(config.rooms)
    for speed in config.speeds:
        for cut in cuts:
            yield _copy(cut, speed, config, noises, rooms)


def original_and_speed(name: str) -> tuple[str, Fraction]:
    """Return the id of the utterance that a copy was made from, and its speed (default 1)."""
    found = _SUFFIX.search(name)
    if found is None:
        return name, Fraction(1)
    return name[: found.start()], Fraction(found[1] or 1)


def original_id(name: str) -> str:
    """Return the id of the utterance that a copy, or a copy of a copy, goes back to."""
    while (shorter := original_and_speed(name)[0]) != name:
        name = shorter
    return name


@dataclass(frozen=True)
class _Audio:
    path: str
    seconds: float
    channels: int


def _audio_files(folder: Path) -> list[_Audio]:
    suffixes = AUDIO_SUFFIXES | MEDIA_SUFFIXES
    paths = sorted(p for p in Path(folder).rglob("*") if p.suffix.lower() in suffixes)
    if not paths:
        raise AugmentError(f"{folder} holds no audio; give a folder of recordings")
    files = []
    for path in paths:
        try:
            with open_audio(path) as file:
                seconds, channels = file.frames / file.samplerate, file.channels
        except (soundfile.SoundFileError, OSError, ArithmeticError) as error:
            raise AugmentError(f"{path}: {error}; remove it from the folder") from error
        if not seconds:
            raise AugmentError(f"{path}: no samples; remove it from the folder")
        files.append(_Audio(str(path), seconds, channels))
    return files


def _copy(
    cut: "MonoCut", speed: float, config: AugmentConfig, noises: list[_Audio], rooms: list[_Audio]
) -> "MonoCut":
    from toolkit.features.cut_resampling import is_costly
    from toolkit.features.degrade import AddNoise, Reverberate

    name, rate = cut.id, cut.sampling_rate
    copy = cut.resample(ROUND_RATE) if is_costly(round(rate * speed), rate) else cut
    copy = copy if speed == 1 else copy.perturb_speed(speed)
    if config.degrades:
        copy = replace(copy, id=f"{copy.id}_aug")
    chance = random.Random(f"{config.seed} {copy.id}")
    transforms = list(copy.recording.transforms or [])
    if rooms and chance.random() < config.rooms_share:
        room = chance.choice(rooms)
        transforms.append(Reverberate(room.path, chance.randrange(room.channels)))
    if noises and chance.random() < config.noise_share:
        noise = chance.choice(noises)
        start, snr = chance.uniform(0, noise.seconds), chance.uniform(*config.snr)
        transforms.append(AddNoise(noise.path, round(start, 3), round(snr, 2)))
    suffix = copy.id[len(name) :]
    supervision = copy.supervisions[0]
    return replace(
        copy,
        recording=replace(copy.recording, transforms=transforms),
        supervisions=[replace(supervision, speaker=f"{supervision.speaker}{suffix}", id=copy.id)],
    )
