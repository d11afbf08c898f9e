"""Enhancement of whole array recordings: echo cancelled on every microphone, then one MVDR beam.

Canceller and beam know all of an utterance: it shows how much a device's front end, which hears it
once and block by block (`toolkit.features.multichannel.device`), leaves on the table.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np
import torch

from toolkit.corpus.audio_file import encode_audio
from toolkit.errors import ToolkitError
from toolkit.features.multichannel.array import Components, load_array, load_components
from toolkit.features.multichannel.beamforming import (
    BeamformingConfig,
    apply_weights,
    beamform_weights,
)
from toolkit.features.multichannel.echo import EchoConfig, estimate_echo
from toolkit.features.multichannel.measures import ratio_db, snr_db
from toolkit.processes.workers import map_in_processes
from toolkit.storage.files import write_atomically
from toolkit.storage.paths import path_below

if TYPE_CHECKING:
    from lhotse.cut import MonoCut, MultiCut

LOUDEST = 0.99
"""Highest sample written; a louder utterance is attenuated as a whole."""


class EnhanceError(ToolkitError):
    """Array recordings that cannot be enhanced."""


@dataclass(frozen=True)
class EnhanceConfig:
    """Settings of the far-field front end."""

    cancel_echo: bool = True
    """Cancel the echo of the playback at every microphone."""
    echo: EchoConfig = EchoConfig()
    """Settings of the adaptive filter."""
    beamforming: BeamformingConfig = BeamformingConfig()
    """Settings of the beamformer."""


@dataclass(frozen=True)
class Enhanced:
    """An utterance after the front end."""

    samples: np.ndarray
    """float32[S]."""
    erle_db: float | None
    """Echo before over echo after cancellation, at all microphones; None: no echo, or not known."""
    snr_gain_db: float | None
    """Gain in the ratio of speech to noise and echo over the first microphone: the mean over
    frequencies, so that attenuating some of them gains nothing; None: not known."""


def enhance(
    sets: "Mapping[str, Sequence[MultiCut]]",
    config: EnhanceConfig,
    out: Path,
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, float]:
    """Turn array recordings into one channel each: `out/<set>/<id>.flac` and `out/<set>.jsonl`.

    Utterances that are there already are kept, so `out` must be of the same cuts and settings.
    The bytes do not depend on `jobs`.

    Args:
      sets: array cuts by name, see `toolkit.features.multichannel.array`.
      config: echo cancellation and beamforming.
      out: folder to write.
      jobs: processes.
      progress: called with the utterances done and their total.

    Returns:
      `<set> ERLE dB`, the mean over utterances with an echo, and `<set> SNR gain dB`, the mean over
      all, where the recordings' components are known.

    Raises:
      EnhanceError: no cuts.
      ArrayError: a cut that is not an array recording.
    """
    from toolkit.processes.bars import Bar

    tasks = [_Task(name, cut) for name, cuts in sets.items() for cut in cuts]
    if not tasks:
        raise EnhanceError("there are no array recordings to enhance")
    work = partial(_enhance_one, config=config, out=out)
    missing = [task for task in tasks if not task.report(out).exists()]
    done = len(tasks) - len(missing)
    with Bar(total=len(tasks), initial=done, unit="utt", desc="front end") as bar:
        for count, _ in enumerate(map_in_processes(work, missing, jobs), done + 1):
            bar.update()
            if progress is not None:
                progress(count, len(tasks))
    headline = {}
    for name in sets:
        own = [task for task in tasks if task.set == name]
        reports = [json.loads(task.report(out).read_text(encoding="utf-8")) for task in own]
        erle = [r["erle_db"] for r in reports if r["erle_db"] is not None]
        gain = [r["snr_gain_db"] for r in reports if r["snr_gain_db"] is not None]
        headline |= {f"{name} ERLE dB": float(np.mean(erle))} if erle else {}
        headline |= {f"{name} SNR gain dB": float(np.mean(gain))} if gain else {}
    return headline


def enhanced_cuts(
    sets: "Mapping[str, Sequence[MultiCut]]", out: Path
) -> "dict[str, list[MonoCut]]":
    """Return the one-channel cuts of what `enhance` wrote to `out`; all else is as before."""
    out = Path(out).absolute()
    return {name: [_cut(_Task(name, cut), out) for cut in cuts] for name, cuts in sets.items()}


def enhance_utterance(
    microphones: np.ndarray,
    playback: np.ndarray,
    config: EnhanceConfig,
    components: Components | None = None,
) -> Enhanced:
    """Cancel the echo and form the beam.

    The filters are estimated from the mixture alone. Where its components are known, the same
    filters are applied to each of them, to measure the effect on speech, noise and echo.

    Args:
      microphones: float32[M, S].
      playback: float32[S].
      config: echo cancellation and beamforming.
      components: components of the microphones' signals, for the measures.
    """
    estimate = np.zeros_like(microphones)
    if config.cancel_echo:
        estimate, _ = estimate_echo(microphones, playback, config.echo)
    clean = torch.from_numpy(microphones - estimate)
    weights = beamform_weights(clean, config.beamforming)

    def beam(channels: np.ndarray) -> np.ndarray:
        return apply_weights(torch.from_numpy(channels), weights, config.beamforming).numpy()

    samples = beam(microphones - estimate)
    if components is None:
        return Enhanced(samples, None, None)
    speech, echo = components.speech, components.echo
    residual = microphones - speech - estimate  # noise and residual echo
    erle = ratio_db(echo, echo - estimate) if np.any(echo) else None
    after = snr_db(beam(speech), beam(residual))
    before = snr_db(speech[0], microphones[0] - speech[0])
    return Enhanced(samples, erle, after - before)


@dataclass(frozen=True)
class _Task:
    set: str
    cut: "MultiCut"

    def audio(self, out: Path) -> Path:
        """Return the path of the audio file to write."""
        return path_below(out, f"{self.set}/{quote(self.cut.id, safe='')}.flac")

    def report(self, out: Path) -> Path:
        """Return the path of its measures, written after the audio."""
        return self.audio(out).with_suffix(".json")


def _enhance_one(task: _Task, config: EnhanceConfig, out: Path) -> None:
    audio = load_array(task.cut)
    try:
        found = enhance_utterance(
            audio.microphones, audio.playback, config, load_components(task.cut)
        )
    except ToolkitError:
        raise
    except Exception as error:
        raise EnhanceError(f"{task.cut.id}: {error!r} in the front end") from error
    scale = min(1.0, LOUDEST / max(float(np.abs(found.samples).max()), 1e-9))
    samples = np.rint(found.samples * scale * 32767).astype(np.int16)
    write_atomically(task.audio(out), encode_audio(samples, audio.sampling_rate))
    measures = {"erle_db": found.erle_db, "snr_gain_db": found.snr_gain_db}
    write_atomically(task.report(out), json.dumps(measures) + "\n")


def _cut(task: _Task, out: Path) -> "MonoCut":
    from toolkit.corpus.manifest import make_cut, recording_or_fault, speaker_of, text_of

    recording, fault = recording_or_fault(task.audio(out), task.cut.id)
    if fault is not None:
        raise EnhanceError(f"{fault}; run the front end again")
    cut = make_cut(task.cut.id, recording, text_of(task.cut), speaker_of(task.cut))
    custom = {k: v for k, v in (task.cut.custom or {}).items() if k != "components"}
    cut.custom = custom or None
    return cut
