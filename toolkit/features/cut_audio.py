"""Reads the audio of lhotse cuts as one-channel float samples at a given sampling rate."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from lhotse.audio.backend import LibsndfileBackend, set_current_audio_backend
from lhotse.cut import Cut, MixedCut
from lhotse.utils import compute_num_samples
from torch import Tensor

import toolkit.features.degrade  # noqa: F401 - registers its transforms with lhotse
from toolkit.corpus.audio_file import absence, open_at, open_audio
from toolkit.corpus.cuts import UnsafeCutError, check_audio
from toolkit.corpus.manifest import FEATURE_MATRIX
from toolkit.features.audio import AudioError, check_samples, load_audio, resample
from toolkit.features.cut_resampling import check_resampling
from toolkit.storage.reading import reason


class PlainFile(NamedTuple):
    """The file of a cut that is a part of one file and no more."""

    path: Path
    channel: int | None
    """None: the mean of all."""


def load_cut_audio(cut: Cut, sampling_rate: int = 16000) -> Tensor:
    """Read the audio of a cut: its time span, and its one channel or the mean of all.

    A MonoCut has one channel, unless its manifest says `mix_channels`.

    Parts of files are read directly; mixed cuts, recordings in memory or with transforms through
    lhotse, which from then on reads files with `LocalFiles`.

    Returns:
      [S] float32 within [-1, 1] at `sampling_rate` Hz.

    Raises:
      AudioError: as in `load_audio`; or the cut names shell commands or addresses, which are never
        run or fetched, or resamples at a cost beyond `check_resampling`.
    """
    if not cut.has_recording:
        raise AudioError(f"{cut.id}: the cut has no recording")
    if not isinstance(cut, MixedCut) and FEATURE_MATRIX in (cut.custom or {}):
        raise AudioError(f"{cut.id}: its corpus has features instead of audio")
    if file := plain_file(cut):
        return load_audio(file.path, sampling_rate, cut.start, cut.duration, file.channel)
    try:
        check_audio(cut)
        check_resampling(cut)
        set_current_audio_backend(LOCAL_FILES)
        if not isinstance(cut, MixedCut) and (cut.custom or {}).get("mix_channels"):
            samples = cut.recording.load_audio(offset=cut.start, duration=cut.duration)
        else:
            samples = np.atleast_2d(cut.load_audio())
    except UnsafeCutError as error:
        raise AudioError(str(error)) from error
    except Exception as error:  # lhotse's back ends raise exceptions of many unrelated classes
        raise AudioError(f"{cut.id}: {reason(error)}") from error
    mono = samples.mean(axis=0, dtype=np.float32)
    return torch.from_numpy(resample(check_samples(mono, cut.id), cut.sampling_rate, sampling_rate))


def plain_file(cut: Cut) -> PlainFile | None:
    """Return the file of a cut that is a part of one local file, without transforms."""
    # A mixed cut passes questions about its attributes on to its tracks.
    recording = None if isinstance(cut, MixedCut) else getattr(cut, "recording", None)
    if recording is None or recording.transforms or len(recording.sources) != 1:
        return None
    source = recording.sources[0]
    if source.type != "file" or recording.sampling_rate != cut.sampling_rate:
        return None
    mixed = not isinstance(cut.channel, int) or (cut.custom or {}).get("mix_channels")
    return PlainFile(Path(source.source), None if mixed else cut.channel)


class LocalFiles(LibsndfileBackend):
    """Lhotse's access to audio, by libsndfile and nothing else.

    What lhotse tries by itself passes names of files to a shell (`.sph`), to sox (which runs what
    begins with `|`) and to ffmpeg (which fetches addresses).
    """

    def read_audio(
        self,
        path_or_fd: Any,
        offset: float = 0.0,
        duration: float | None = None,
        force_opus_sampling_rate: int | None = None,
    ) -> tuple[np.ndarray, int]:
        """Read samples [channels, S] float32 and their rate, as lhotse's backend of libsndfile."""
        if isinstance(path_or_fd, str | Path) and (fault := absence(Path(path_or_fd))):
            raise AudioError(f"{path_or_fd}: {fault}")
        with open_audio(path_or_fd, in_order=True) as file:
            rate = file.samplerate
            start = compute_num_samples(offset, rate) if offset > 0 else 0
            left = max(0, file.frames - start)
            frames = left if duration is None else compute_num_samples(duration, rate)
            with open_at(path_or_fd, file, start) as part:
                return part.read(frames, dtype="float32", always_2d=True).T, rate


LOCAL_FILES = LocalFiles()
