"""Recordings of microphone arrays: their channels, and their components if simulated."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import soundfile

from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    from lhotse.cut import MultiCut


class ArrayError(ToolkitError):
    """An array recording that cannot be read, or a cut that is not one."""


@dataclass(frozen=True)
class ArrayAudio:
    """The recording of a device; M microphones, S samples, full scale 1."""

    microphones: np.ndarray
    """float32[M, S]."""
    playback: np.ndarray
    """float32[S]: the signal of the device's loudspeaker."""
    sampling_rate: int
    """In Hz."""


@dataclass(frozen=True)
class Components:
    """Components of the microphones' signals, known for simulated recordings."""

    speech: np.ndarray
    """float32[M, S]: speech with its reverberation."""
    echo: np.ndarray
    """float32[M, S]: echo of the playback; zeros where there is none."""


def load_array(cut: "MultiCut") -> ArrayAudio:
    """Read a cut whose last channel is the playback and all others microphones.

    Raises:
      ArrayError: fewer than two channels, or audio that cannot be read.
    """
    sources = cut.recording.sources
    if cut.num_channels < 2 or len(sources) != 1 or sources[0].type != "file":
        raise ArrayError(
            f"{cut.id}: is not a file of at least one microphone and a playback channel; use the"
            " array version of the set"
        )
    channels = _read(sources[0].source, cut)
    return ArrayAudio(channels[:-1], channels[-1], cut.sampling_rate)


def load_components(cut: "MultiCut") -> Components | None:
    """Read the components, whose files `custom["components"]` names; None: they are not known."""
    files = (cut.custom or {}).get("components")
    if files is None:
        return None
    speech = _read(files["speech"], cut)
    echo = _read(files["echo"], cut) if "echo" in files else np.zeros_like(speech)
    return Components(speech, echo)


def _read(path: str, cut: "MultiCut") -> np.ndarray:
    """Read the cut's span of a file: float32[channels, S]."""
    rate = cut.sampling_rate
    start = round(cut.start * rate)
    try:
        samples, found = soundfile.read(
            path, round(cut.duration * rate), start, dtype="float32", always_2d=True
        )
    except (soundfile.SoundFileError, OSError) as error:
        raise ArrayError(f"{cut.id}: {path}: {error}; make the set again") from error
    if found != rate or len(samples) != round(cut.duration * rate):
        raise ArrayError(f"{cut.id}: {path} is shorter than the cut or of another rate")
    return np.ascontiguousarray(samples.T)
