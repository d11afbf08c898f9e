"""Makes augmented copies of training utterances: speed, reverberation and noise.

A copy is a separate cut with transforms in its recording; `extract` treats it like any other cut.
Its id is the original's with a suffix: `_sp0.9` for the speed (as in lhotse), then `_aug` if noise
or rooms are configured. The speaker gets the same suffix, so that causal means do not mix speeds.
Copies need no alignment, see `toolkit.align.store`.
"""

import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import soundfile

from toolkit.corpus.audio import AUDIO_SUFFIXES, open_audio
from toolkit.corpus.media import MEDIA_SUFFIXES
from toolkit.errors import ToolkitError
from toolkit.features.config import AugmentConfig

if TYPE_CHECKING:
    from lhotse.cut import MonoCut

ROUND_RATE = 16000
"""Rate in Hz to which audio is resampled before a speed change if its own rate, such as 11,025, has
too few divisors."""
_SUFFIX = re.compile(r"(?:_sp(\d+(?:\.\d+)?)(_aug)?|_aug)$")


class AugmentError(ToolkitError):
    """Raised for noise files or impulse responses that cannot be used."""


def augmented(cuts: "Iterable[MonoCut]", config: AugmentConfig) -> "Iterator[MonoCut]":
    """Yield the augmented copies of cuts, for `extract`.

    The room and noise of a copy depend only on the seed and its id.

    Args:
      cuts: cuts with one supervision each.
      config: which copies to make.

    Raises:
      AugmentError: a folder of noises or rooms has no audio, or damaged audio.
    """
    cuts = list(cuts)
    noises = [] if config.noise is None else _audio_files(config.noise)
    rooms = [] if config.rooms is None else _audio_files(config.rooms)
    for speed in config.speeds:
        for cut in cuts:
            yield _copy(cut, speed, config, noises, rooms)


def original_and_speed(name: str) -> tuple[str, Fraction]:
    """Return the id of the utterance that a copy was made from, and its speed (default 1)."""
    match = _SUFFIX.search(name)
    if match is None:
        return name, Fraction(1)
    return name[: match.start()], Fraction(match[1] or 1)


def original_id(name: str) -> str:
    """Return the id of the utterance from which a copy (or a copy of a copy) was made."""
    while (shorter := original_and_speed(name)[0]) != name:
        name = shorter
    return name


@dataclass(frozen=True)
class _Audio:
    """A noise file or an impulse response."""

    path: str
    seconds: float
    channels: int


def _audio_files(folder: Path) -> list[_Audio]:
    """List the audio files of a folder, sorted by path."""
    suffixes = AUDIO_SUFFIXES | MEDIA_SUFFIXES
    paths = sorted(p for p in Path(folder).rglob("*") if p.suffix.lower() in suffixes)
    if not paths:
        raise AugmentError(
            f"{folder} contains no audio. Set `augment.noise` or `augment.rooms` to a folder of "
            "audio files"
        )
    files = []
    for path in paths:
        try:
            with open_audio(path) as file:
                seconds, channels = file.frames / file.samplerate, file.channels
        except (soundfile.SoundFileError, OSError, ArithmeticError) as error:
            raise AugmentError(f"{path}: {error}; remove this file") from error
        if not seconds:
            raise AugmentError(f"{path} contains no samples; remove this file")
        files.append(_Audio(str(path), seconds, channels))
    return files


def _copy(
    cut: "MonoCut", speed: float, config: AugmentConfig, noises: list[_Audio], rooms: list[_Audio]
) -> "MonoCut":
    """Make a cut's copy at one speed; its id determines the random room and noise."""
    from toolkit.features.cut_audio import AddNoise, Reverberate, is_costly

    # 1. The speed, which changes the id too.
    name, rate = cut.id, cut.sampling_rate
    copy = cut.resample(ROUND_RATE) if is_costly(round(rate * speed), rate) else cut
    copy = copy if speed == 1 else copy.perturb_speed(speed)
    if config.degrades:
        copy = replace(copy, id=f"{copy.id}_aug")
    # 2. Room, then noise, so that the noise is not reverberated.
    rng = random.Random(f"{config.seed} {copy.id}")
    transforms = list(copy.recording.transforms or [])
    if rooms and rng.random() < config.rooms_share:
        room = rng.choice(rooms)
        transforms.append(Reverberate(room.path, rng.randrange(room.channels)))
    if noises and rng.random() < config.noise_share:
        noise = rng.choice(noises)
        start, snr = rng.uniform(0, noise.seconds), rng.uniform(*config.snr)
        transforms.append(AddNoise(noise.path, round(start, 3), round(snr, 2)))
    # 3. The speaker gets the suffix too, so that each speed has a running mean of its own.
    suffix = copy.id[len(name) :]
    supervision = copy.supervisions[0]
    return replace(
        copy,
        recording=replace(copy.recording, transforms=transforms),
        supervisions=[replace(supervision, speaker=f"{supervision.speaker}{suffix}", id=copy.id)],
    )
