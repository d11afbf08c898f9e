"""Reads the audio of lhotse cuts as one-channel float samples at a given sampling rate."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

import toolkit.features.degrade  # noqa: F401 - registers its transforms with lhotse
from toolkit.features.audio import AudioError, check_finite, load_audio, resample

if TYPE_CHECKING:
    from lhotse.cut import Cut


def load_cut_audio(cut: "Cut", sampling_rate: int = 16000) -> Tensor:
    """Read the audio of a cut: its time span, and its one channel or the mean of all.

    A MonoCut has one channel, unless its manifest says `mix_channels`.

    Files are read directly; recordings in memory, in shards or with transforms through lhotse.

    Returns:
      [S] float32 within [-1, 1] at `sampling_rate` Hz.

    Raises:
      AudioError: as in `load_audio`, or the recording is a shell command, which is never run.
    """
    if not cut.has_recording:
        raise AudioError(f"{cut.id}: the cut has no recording")
    recording = getattr(cut, "recording", None)  # a MixedCut has several
    sources = recording.sources if recording is not None else []
    if any(source.type == "command" for source in sources):
        raise AudioError(
            f"{cut.id}: the recording is the shell command `{sources[0].source}`, which is not "
            "run; write its output to a file and name that"
        )
    plain = len(sources) == 1 and sources[0].type == "file" and not recording.transforms
    if plain and recording.sampling_rate == cut.sampling_rate:
        mixed = not isinstance(cut.channel, int) or (cut.custom or {}).get("mix_channels")
        channel = None if mixed else cut.channel
        return load_audio(sources[0].source, sampling_rate, cut.start, cut.duration, channel)
    try:
        if recording is not None and (cut.custom or {}).get("mix_channels"):
            samples = recording.load_audio(offset=cut.start, duration=cut.duration)
        else:
            samples = np.atleast_2d(cut.load_audio())
    except Exception as error:  # lhotse's back ends raise exceptions of many unrelated classes
        raise AudioError(f"{cut.id}: {error}") from error
    mono = samples.mean(axis=0, dtype=np.float32)
    return torch.from_numpy(resample(check_finite(mono, cut.id), cut.sampling_rate, sampling_rate))
