"""Enhances whole array recordings (C1): echo cancellation per microphone, then one MVDR beam.

The canceller and the beamformer use the whole utterance. They are the reference for a device's
front end, which processes audio block by block (`toolkit.features.multichannel.device`).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np
import soundfile
import torch
from torch import Tensor

from toolkit.corpus.audio import encode_audio
from toolkit.errors import ToolkitError
from toolkit.features.config import BeamformingConfig, EnhanceConfig
from toolkit.features.multichannel.echo import estimate_echo
from toolkit.processes.workers import map_in_processes
from toolkit.storage.files import write_atomically
from toolkit.storage.paths import path_below

if TYPE_CHECKING:
    from lhotse.cut import MonoCut, MultiCut

MIN_SPEECH = 0.01
"""Lowest value of the speech mask, so that a direction is found at all frequencies."""
SMALLEST_LOADING = 1e-8
"""Added to powers, because they are zero where only zeros were recorded."""


class ArrayError(ToolkitError):
    """Raised for an array recording that cannot be read, or a cut that is not one."""


@dataclass(frozen=True)
class ArrayAudio:
    """An array recording with M microphones and S samples, full scale 1."""

    microphones: np.ndarray
    """float32[M, S]."""
    playback: np.ndarray
    """float32[S]: the signal of the device's loudspeaker."""
    sampling_rate: int
    """In Hz."""


@dataclass(frozen=True)
class Components:
    """Components of the microphone signals, known for simulated recordings only."""

    speech: np.ndarray
    """float32[M, S]: speech with its reverberation."""
    echo: np.ndarray
    """float32[M, S]: echo of the playback; zeros where there is none."""


def load_array(cut: "MultiCut") -> ArrayAudio:
    """Read a cut whose last channel is the playback and whose other channels are microphones.

    Raises:
      ArrayError: the cut has fewer than two channels, or audio that cannot be read.
    """
    sources = cut.recording.sources
    if cut.num_channels < 2 or len(sources) != 1 or sources[0].type != "file":
        raise ArrayError(
            f"{cut.id}: the file must have at least one microphone channel and a playback "
            "channel. Use the array version of this data set"
        )
    channels = _read_channels(sources[0].source, cut)
    return ArrayAudio(channels[:-1], channels[-1], cut.sampling_rate)


def load_components(cut: "MultiCut") -> Components | None:
    """Read the component files in `custom["components"]`; None if there are none."""
    files = (cut.custom or {}).get("components")
    if files is None:
        return None
    speech = _read_channels(files["speech"], cut)
    echo = _read_channels(files["echo"], cut) if "echo" in files else np.zeros_like(speech)
    return Components(speech, echo)


def _read_channels(path: str, cut: "MultiCut") -> np.ndarray:
    """Read the cut's time span of a file: float32 [channels, S]."""
    rate = cut.sampling_rate
    start = round(cut.start * rate)
    try:
        samples, file_rate = soundfile.read(
            path, round(cut.duration * rate), start, dtype="float32", always_2d=True
        )
    except (soundfile.SoundFileError, OSError) as error:
        raise ArrayError(f"{cut.id}: {path}: {error}; make the data set again") from error
    if file_rate != rate or len(samples) != round(cut.duration * rate):
        raise ArrayError(
            f"{cut.id}: {path} is shorter than the cut, or its sampling rate differs from that of"
            " the cut; make the data set again"
        )
    return np.ascontiguousarray(samples.T)


SNR_WINDOW = 512
"""Samples per frame for measuring speech-to-noise ratios."""


def ratio_db(signal: np.ndarray, reference: np.ndarray) -> float:
    """Return the ratio of two signals' energies in dB.

    The echo return loss enhancement is this ratio for the echo before and after cancellation.
    """
    energies = [float(np.sum(np.square(x, dtype=np.float64))) for x in (signal, reference)]
    return float(10 * np.log10(max(energies[0], 1e-20) / max(energies[1], 1e-20)))


def snr_db(speech: np.ndarray, noise: np.ndarray) -> float:
    """Return the ratio of two signals' energies in dB, averaged over frequencies.

    The mean is taken in dB, so that attenuating some frequencies gains nothing, and over 1/80 to
    7/8 of the band, as there is little speech outside.
    """
    spectra = torch.stft(
        torch.from_numpy(np.stack([speech, noise])).double(),
        SNR_WINDOW,
        SNR_WINDOW // 4,
        window=torch.hann_window(SNR_WINDOW, dtype=torch.float64),
        return_complex=True,
    )
    energy = spectra.abs().square().sum(dim=2)  # [2, F]: speech and noise
    bins = energy.shape[1]
    band_energy = energy[:, max(1, bins // 80) : bins * 7 // 8].clamp_min(1e-12)
    return float((10 * (band_energy[0] / band_energy[1]).log10()).mean())


def beamform_weights(microphones: Tensor, config: BeamformingConfig) -> Tensor:
    """Estimate an utterance's beamforming weights.

    Args:
      microphones: [M, S] float, without the echo.
      config: method and settings.

    Returns:
      [F, M] complex, to be conjugated in the sum over microphones. The beam leaves the speech as
      the first microphone has it.
    """
    spectra = stft(microphones / _rms(microphones), config)
    if config.method == "none" or len(microphones) == 1:
        weights = torch.zeros(spectra.shape[1], len(microphones), dtype=spectra.dtype)
        weights[:, 0] = 1.0
        return weights
    speech, noise = masks(spectra, config)
    if config.method == "delay-and-sum":
        return delay_and_sum_weights(spectra, speech)
    return mvdr_weights(spectra, speech, noise, config.loading)


def _rms(microphones: Tensor) -> Tensor:
    """Return the root mean square of signals; dividing by it makes `SMALLEST_LOADING` relative."""
    return microphones.square().mean().sqrt().clamp_min(1e-9)


def apply_weights(microphones: Tensor, weights: Tensor, config: BeamformingConfig) -> Tensor:
    """Apply weights [F, M] to microphone signals or components [M, S]: [S] float32."""
    spectra = stft(microphones, config)
    beam = torch.einsum("fm,mft->ft", weights.conj(), spectra)  # y_ft = w_f^H x_ft
    window = torch.hann_window(config.window, dtype=torch.float64)
    samples = torch.istft(
        beam, config.window, config.shift, window=window, length=microphones.shape[1]
    )
    return samples.float()


def stft(microphones: Tensor, config: BeamformingConfig) -> Tensor:
    """Return the short-time Fourier transform of [M, S]: [M, F, T] complex128."""
    window = torch.hann_window(config.window, dtype=torch.float64)
    return torch.stft(
        microphones.double(), config.window, config.shift, window=window, return_complex=True
    )


def masks(spectra: Tensor, config: BeamformingConfig) -> tuple[Tensor, Tensor]:
    """Estimate which time-frequency bins hold speech, and which frames hold only noise.

    The quietest frames, by their mean log power from a sixteenth to half of the band, are noise.
    The noise power at a frequency is `oversubtraction` times the mean power of these frames; the
    power that a bin has above this is speech.

    Args:
      spectra: [M, F, T] complex.

    Returns:
      The share of speech in each bin, from `MIN_SPEECH` to 1: [F, T]; and 1 for frames of noise, 0
      for others: [F, T].
    """
    power = spectra.abs().square().mean(dim=0)  # [F, T], mean over the microphones
    bins, frames = power.shape
    loudness = power[bins // 16 : bins // 2].clamp_min(1e-12).log().mean(dim=0)
    # The quietest frames are noise; their mean power by frequency is the noise floor.
    quiet = loudness.argsort()[: max(1, int(config.quiet_share * frames))]
    floor = config.oversubtraction * power[:, quiet].mean(dim=1, keepdim=True)
    # Spectral subtraction: 1 - N / P is the Wiener gain of a bin.
    speech = (1 - floor / power.clamp_min(1e-20)).clamp(MIN_SPEECH, 1.0)
    noise = torch.zeros_like(power)
    noise[:, quiet] = 1.0
    return speech, noise


def mvdr_weights(spectra: Tensor, speech: Tensor, noise: Tensor, loading: float) -> Tensor:
    """Compute MVDR weights: minimal noise, the first microphone's speech undistorted.

    The speech's transfer to the microphones, relative to the first, is the principal eigenvector
    of its covariance. This makes the covariance rank one; otherwise frequencies at which the speech
    arrives over many paths would be attenuated. The weights equal those of torchaudio's
    `mvdr_weights_rtf` with the transfer from `rtf_evd`.

    Args:
      spectra: [M, F, T] complex.
      speech, noise: [F, T], see `masks`.
      loading: see `BeamformingConfig`.

    Returns:
      [F, M] complex.
    """
    transfer = torch.linalg.eigh(_covariance(spectra, speech)).eigenvectors[..., -1]  # [F, M]
    covariance = _covariance(spectra, noise)
    power = covariance.diagonal(dim1=-2, dim2=-1).real.sum(dim=-1)  # [F]
    # Diagonal loading keeps the covariance invertible: R + (loading * trace + eps) I.
    loads = loading * power + SMALLEST_LOADING
    covariance += loads[:, None, None] * torch.eye(len(spectra), dtype=covariance.dtype)
    # w = R^-1 d / (d^H R^-1 d) * conj(d_1): distortionless for the first microphone.
    whitened = torch.linalg.solve(covariance, transfer[..., None]).squeeze(-1)
    response = (transfer.conj() * whitened).sum(dim=-1).real + SMALLEST_LOADING
    return whitened / response[:, None] * transfer[:, :1].conj()


def _covariance(spectra: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted covariance of the microphones over frames: [F, M, M] complex.

    Args:
      spectra: [M, F, T] complex.
      weights: [F, T]; they need not add up to 1.
    """
    channels = spectra.transpose(0, 1)  # [F, M, T]
    # R_f = sum_t w_ft x_ft x_ft^H / sum_t w_ft.
    shares = weights / weights.sum(dim=1, keepdim=True).clamp_min(1e-10)
    return channels * shares[:, None] @ channels.conj().transpose(1, 2)


def delay_and_sum_weights(spectra: Tensor, speech: Tensor) -> Tensor:
    """Compute delay-and-sum weights relative to the first microphone.

    A delay is the lag, to an eighth of a sample, at which the cross correlation of the whitened
    speech (GCC-PHAT) is highest.

    Args:
      spectra: [M, F, T] complex.
      speech: [F, T], share of speech.

    Returns:
      [F, M] complex.
    """
    finer = 8  # steps per sample
    cross = (speech * spectra * spectra[:1].conj()).sum(dim=2)  # [M, F]
    bins = cross.shape[1]
    length = finer * 2 * (bins - 1)
    # PHAT: only the phase counts. A longer inverse FFT interpolates to 1/8 sample.
    correlation = torch.fft.irfft(cross / cross.abs().clamp_min(1e-20), length)
    longest = finer * 16
    lags = torch.cat([torch.arange(longest + 1), torch.arange(-longest, 0)])
    # Lags 0 to 16 and -16 to -1 samples; negative ones are at the end of the circular
    # correlation.
    near = torch.cat([correlation[:, : longest + 1], correlation[:, -longest:]], dim=1)
    delays = lags[near.argmax(dim=1)] / finer  # samples
    turns = torch.arange(bins)[:, None] / (2 * (bins - 1)) * delays
    # A delay of d samples turns frequency f by -2 pi f d.
    phase = -2 * np.pi * turns
    return torch.polar(torch.full_like(phase, 1 / len(spectra)), phase).to(spectra.dtype)


LOUDEST = 0.99
"""Largest magnitude of written samples; a louder utterance is attenuated as a whole."""


class EnhanceError(ToolkitError):
    """Raised when array recordings cannot be enhanced."""


@dataclass(frozen=True)
class Enhanced:
    """An enhanced utterance and measures of its enhancement."""

    samples: np.ndarray
    """float32[S]."""
    erle_db: float | None
    """Ratio of the echo before and after cancellation, at all microphones; None: no echo, or not
    known."""
    snr_gain_db: float | None
    """Gain in the ratio of speech to noise and echo, compared with the first microphone; the mean
    over frequencies in dB, so that attenuating some of them gains nothing. None: not known."""


def enhance(
    sets: "Mapping[str, Sequence[MultiCut]]",
    config: EnhanceConfig,
    out: Path,
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, float]:
    """Enhance array recordings to one channel: `out/<set>/<id>.flac`, with measures in `<id>.json`.

    Existing utterances are kept, so `out` must belong to the same cuts and settings. The bytes do
    not depend on `jobs`.

    Args:
      sets: array cuts by name, see `toolkit.features.multichannel.beamforming`.
      config: echo cancellation and beamforming.
      out: folder to write.
      jobs: processes.
      progress: called with the number of utterances done and their total.

    Returns:
      `<set> ERLE dB`, the mean over utterances with an echo, and `<set> SNR gain dB`, the mean over
      all, where the recordings' components are known.

    Raises:
      EnhanceError: there are no cuts.
      ArrayError: a cut is not an array recording.
    """
    from toolkit.processes.bars import Bar

    tasks = [_Task(name, cut) for name, cuts in sets.items() for cut in cuts]
    if not tasks:
        raise EnhanceError("there are no array recordings to enhance")
    enhance_task = partial(_enhance_one, config=config, out=out)
    missing = [task for task in tasks if not task.report(out).exists()]
    done = len(tasks) - len(missing)
    with Bar(total=len(tasks), initial=done, unit="utt", desc="front end") as bar:
        for count, _ in enumerate(map_in_processes(enhance_task, missing, jobs), done + 1):
            bar.update()
            if progress is not None:
                progress(count, len(tasks))
    headline = {}
    for name in sets:
        set_tasks = [task for task in tasks if task.set == name]
        reports = [json.loads(task.report(out).read_text(encoding="utf-8")) for task in set_tasks]
        erle = [r["erle_db"] for r in reports if r["erle_db"] is not None]
        gain = [r["snr_gain_db"] for r in reports if r["snr_gain_db"] is not None]
        headline |= {f"{name} ERLE dB": float(np.mean(erle))} if erle else {}
        headline |= {f"{name} SNR gain dB": float(np.mean(gain))} if gain else {}
    return headline


def enhanced_cuts(
    sets: "Mapping[str, Sequence[MultiCut]]", out: Path
) -> "dict[str, list[MonoCut]]":
    """Return the one-channel cuts of the audio that `enhance` wrote to `out`."""
    out = Path(out).absolute()
    return {
        name: [_enhanced_cut(_Task(name, cut), out) for cut in cuts] for name, cuts in sets.items()
    }


def enhance_utterance(
    microphones: np.ndarray,
    playback: np.ndarray,
    config: EnhanceConfig,
    components: Components | None = None,
) -> Enhanced:
    """Cancel the echo of an utterance and form the beam.

    The filters are estimated from the mixture alone. If the components of the mixture are known,
    the same filters are applied to each, to measure the effect on speech, noise and echo.

    Args:
      microphones: float32[M, S].
      playback: float32[S].
      config: echo cancellation and beamforming.
      components: components of the microphones' signals, for the measures.
    """
    # 1. Estimate the echo and the beam from the mixture.
    estimate = np.zeros_like(microphones)
    if config.cancel_echo:
        estimate, _ = estimate_echo(microphones, playback, config.echo)
    clean = torch.from_numpy(microphones - estimate)
    weights = beamform_weights(clean, config.beamforming)

    def beam(channels: np.ndarray) -> np.ndarray:
        return apply_weights(torch.from_numpy(channels), weights, config.beamforming).numpy()

    samples = beam(microphones - estimate)
    # 2. Apply both to the known components: they are linear, so that the parts add up.
    if components is None:
        return Enhanced(samples, None, None)
    speech, echo = components.speech, components.echo
    residual = microphones - speech - estimate  # noise and residual echo
    erle = ratio_db(echo, echo - estimate) if np.any(echo) else None
    snr_after = snr_db(beam(speech), beam(residual))
    snr_before = snr_db(speech[0], microphones[0] - speech[0])
    return Enhanced(samples, erle, snr_after - snr_before)


@dataclass(frozen=True)
class _Task:
    """An utterance to enhance."""

    set: str
    cut: "MultiCut"

    def audio(self, out: Path) -> Path:
        """Path of the enhanced audio file."""
        return path_below(out, f"{self.set}/{quote(self.cut.id, safe='')}.flac")

    def report(self, out: Path) -> Path:
        """Path of the measures, written after the audio."""
        return self.audio(out).with_suffix(".json")


def _enhance_one(task: _Task, config: EnhanceConfig, out: Path) -> None:
    """Enhance an utterance; write its audio, then its measures."""
    audio = load_array(task.cut)
    try:
        enhanced = enhance_utterance(
            audio.microphones, audio.playback, config, load_components(task.cut)
        )
    except ToolkitError:
        raise
    except Exception as error:
        raise EnhanceError(f"{task.cut.id}: the front end failed with {error!r}") from error
    scale = min(1.0, LOUDEST / max(float(np.abs(enhanced.samples).max()), 1e-9))
    samples = np.rint(enhanced.samples * scale * 32767).astype(np.int16)
    write_atomically(task.audio(out), encode_audio(samples, audio.sampling_rate))
    measures = {"erle_db": enhanced.erle_db, "snr_gain_db": enhanced.snr_gain_db}
    write_atomically(task.report(out), json.dumps(measures) + "\n")


def _enhanced_cut(task: _Task, out: Path) -> "MonoCut":
    """Make the cut of an enhanced utterance."""
    from toolkit.corpus.manifest import make_cut, probe_recording, speaker_of, text_of

    recording, fault = probe_recording(task.audio(out), task.cut.id)
    if fault is not None:
        raise EnhanceError(f"{fault}; run the front end again")
    cut = make_cut(task.cut.id, recording, text_of(task.cut), speaker_of(task.cut))
    custom = {k: v for k, v in (task.cut.custom or {}).items() if k != "components"}
    cut.custom = custom or None
    return cut
