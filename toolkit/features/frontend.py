"""Kaldi's front ends (log-mel, MFCC, PLP, log-mel with MFCC) by kaldifeat or torch."""

import math
from collections.abc import Callable, Sequence
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from toolkit.engines import FRONTEND_VARIABLE, EngineError, frontend_engine
from toolkit.errors import ToolkitError
from toolkit.features.config import FrontendConfig
from toolkit.features.silence import PLP_MARK
from toolkit.processes.devices import to_device

if TYPE_CHECKING:
    import kaldifeat

SMALLEST_STEP = 1e-3
"""Largest difference between neighbouring samples in digital silence, in 16-bit steps."""


class FrontendError(ToolkitError):
    """Raised when the front end cannot compute the features of an utterance."""


class TooShortError(FrontendError):
    """Raised when an utterance is shorter than one window."""


class Frontend:
    """Computes features as a `FrontendConfig` specifies.

    As in Kaldi with `--snip-edges=false --dither=0 --use-energy=false`, S samples have T = round(S
    / step) frames. Frame t covers the same time in every kind of features, so that alignments are
    valid for all kinds. There is one difference: without dither, PLP of digital silence would be
    NaN. So frames of digital silence, and no others, get Kaldi's dither of one 16-bit step from a
    fixed seed. Their C0 is set to -2^-10, just below that of all other frames, so that
    `toolkit.features.silence` finds them. `fbank_mfcc` sums the spectrum's magnitude as in A1,
    other kinds its power as in Kaldi.

    Args:
      config: the settings.
      engine: "kaldifeat", or "torch", which computes the same by torch operations on the device of
        the samples; results differ by rounding. None: that of `toolkit.engines.frontend_engine`.
      device: device of the samples, which kaldifeat must know.
    """

    def __init__(
        self, config: FrontendConfig, engine: str | None = None, device: str = "cpu"
    ) -> None:
        self.config = config
        self.engine = engine or feature_backend()
        self._device = torch.device(device)
        if self.engine == "kaldifeat":
            self._base = _kaldifeat_computer(config, self._device)
        else:
            self._base = _torch_computer(config)
        if config.kind == "fbank_mfcc":
            self._cepstra = CepstralTransform(config.mel_bins, config.num_ceps)

    def __call__(self, samples: Tensor) -> Tensor:
        """Compute the features [T, F] of one utterance.

        Args:
          samples: [S] at the config's rate, on any device: float32 within [-1, 1], which is
            multiplied by 32768 as in Kaldi; or int16, used as it is with the same result.

        Returns:
          [T, F] float32 on the device of the samples, T = round(S / step).

        Raises:
          TooShortError: there are fewer samples than one window has.
          FrontendError: the features are NaN or infinite.
        """
        self._check_length(samples)
        scaled = _scaled(samples)
        features = self._compute(scaled)
        if self._may_be_silent(features):
            silent = self._silent(scaled, len(features))
            if silent.any():
                dither = torch.randn(len(scaled), generator=torch.Generator().manual_seed(0))
                features[silent] = self._compute(scaled + dither.to(scaled.device))[silent]
                features[silent, 0] = PLP_MARK
        if not math.isfinite(features.sum().item()):
            raise FrontendError("the features are not finite numbers")
        return features

    def _may_be_silent(self, features: Tensor) -> bool:
        """Whether some PLP frame may be digital silence: its C0 is at the floor, or NaN."""
        if self.config.kind != "plp":
            return False
        return not bool((features[:, 0] > torch.finfo(torch.float32).eps).all())

    def _silent(self, scaled: Tensor, num_frames: int) -> Tensor:
        """Return which windows hold a constant value: samples [S] to [T] bool."""
        config = self.config
        step = int(config.frame_shift_ms * config.sampling_rate / 1000)
        window = int(config.frame_length_ms * config.sampling_rate / 1000)
        changes = ~(scaled.diff().abs() <= SMALLEST_STEP)  # [S - 1]; NaN counts as a change
        # [S] changes before sample i. In a silent window the first and last samples have the same
        # number.
        num_changes = torch.nn.functional.pad(changes.cumsum(0), (1, 0))
        # Windows that reach beyond an end hold mirrored samples, which are in the window anyway.
        begin = torch.arange(num_frames, device=scaled.device) * step - (window - step) // 2
        last = (begin + window - 1).clamp(max=len(scaled) - 1)
        return num_changes[last] == num_changes[begin.clamp(min=0)]

    def batch(self, utterances: Sequence[Tensor]) -> list[Tensor | FrontendError]:
        """Compute the features of several utterances together, on this front end's device.

        Args:
          utterances: [S] each on the CPU, see `__call__`.

        Returns:
          For each utterance [T, F] float32 on the CPU, or the error that `__call__` would raise.
        """
        # 1. Utterances that are long enough are concatenated.
        results: list[Tensor | FrontendError | None] = [None] * len(utterances)
        for row, samples in enumerate(utterances):
            try:
                self._check_length(samples)
            except FrontendError as error:
                results[row] = error
        rows = [row for row, result in enumerate(results) if result is None]
        if not rows:
            return results
        step = int(self.config.frame_shift_ms * self.config.sampling_rate / 1000)
        sizes = [len(utterances[row]) for row in rows]
        samples = to_device(torch.cat([utterances[row] for row in rows]), self._device)
        # 2. [sum of T, F], split into utterances of T = round(S / step) frames
        features = self._compute(*_scaled(samples).split(sizes)).cpu()
        parts = features.split([(size + step // 2) // step for size in sizes])
        # 3. Utterances with digital silence or non-finite values are computed again by `__call__`.
        for row, part in zip(rows, parts, strict=True):
            is_complete = math.isfinite(part.sum().item()) and not self._may_be_silent(part)
            results[row] = part if is_complete else self._features_or_error(utterances[row])
        return results

    def _features_or_error(self, samples: Tensor) -> Tensor | FrontendError:
        """Return the features of one utterance on the CPU, or the error."""
        try:
            return self(samples.to(self._device)).cpu()
        except FrontendError as error:
            return error

    def _check_length(self, samples: Tensor) -> None:
        """Raise a TooShortError if the samples do not fill one window."""
        window = round(self.config.frame_length_ms * self.config.sampling_rate / 1000)
        if samples.numel() < window:
            raise TooShortError(
                f"the utterance has {samples.numel()} samples, fewer than one window of {window}"
            )

    def _compute(self, *scaled: Tensor) -> Tensor:
        """Compute the features of utterances [S], concatenated: [sum of T, F]."""
        features = self._base(*scaled).contiguous()  # torch's cepstra come column by column
        if self.config.kind != "fbank_mfcc":
            return features
        return torch.cat([features, self._cepstra.to(features.device)(features)], dim=1)


def _scaled(samples: Tensor) -> Tensor:
    """Scale samples from [-1, 1] to Kaldi's range, -32768 to 32767."""
    return samples.float() if samples.dtype == torch.int16 else samples * 32768


def kaldifeat_computer(
    config: FrontendConfig, device: torch.device | str = "cpu"
) -> "kaldifeat.OfflineFeature":
    """Return kaldifeat's feature computer, which for `fbank_mfcc` computes log-mel values."""
    import kaldifeat

    options = {
        "fbank": kaldifeat.FbankOptions,
        "fbank_mfcc": kaldifeat.FbankOptions,
        "mfcc": kaldifeat.MfccOptions,
        "plp": kaldifeat.PlpOptions,
    }[config.kind]()
    options.device = torch.device(device)
    options.frame_opts.samp_freq = float(config.sampling_rate)
    options.frame_opts.frame_length_ms = config.frame_length_ms
    options.frame_opts.frame_shift_ms = config.frame_shift_ms
    options.frame_opts.snip_edges = False
    options.frame_opts.dither = 0.0
    options.mel_opts.num_bins = config.mel_bins
    options.mel_opts.low_freq = config.low_freq
    options.mel_opts.high_freq = config.high_freq
    options.use_energy = False
    if config.kind == "fbank_mfcc":
        options.use_power = False
    elif config.kind != "fbank":
        options.num_ceps = config.num_ceps
    classes = {"mfcc": kaldifeat.Mfcc, "plp": kaldifeat.Plp}
    return classes.get(config.kind, kaldifeat.Fbank)(options)


def _kaldifeat_computer(config: FrontendConfig, device: torch.device) -> Callable[..., Tensor]:
    """Return a kaldifeat function from utterances [S] to features [sum of T, F]."""
    kaldi = kaldifeat_computer(config, device)

    def compute(*utterances: Tensor) -> Tensor:
        # The same as `kaldi(samples)`, which would copy the overlapping frames once more.
        first, *more_frames = map(kaldi.convert_samples_to_frames, utterances)
        return kaldi.compute(torch.cat([first, *more_frames]) if more_frames else first)

    return compute


def _torch_computer(config: FrontendConfig) -> Callable[..., Tensor]:
    """Return a torch function from utterances [S] to features [sum of T, F]."""
    # Kaldi rounds window and step down to whole samples.
    window = int(config.frame_length_ms * config.sampling_rate / 1000)
    step = int(config.frame_shift_ms * config.sampling_rate / 1000)
    points = mel_points(config.mel_bins, config.low_freq, config.upper_edge)
    filters = mel_filters(points, 2 ** (window - 1).bit_length(), config.sampling_rate)
    bank = FilterBank(filters, window, step, power=config.kind != "fbank_mfcc")
    if config.kind == "plp":
        transform = nn.Sequential(PerceptualLinearPrediction(points, config.num_ceps))
    elif config.kind == "mfcc":
        cepstra = CepstralTransform(config.mel_bins, config.num_ceps)
        transform = nn.Sequential(FlooredLog(), cepstra)
    else:
        transform = nn.Sequential(FlooredLog())

    def compute(*utterances: Tensor) -> Tensor:
        device = utterances[0].device
        return transform.to(device)(bank.to(device)(*utterances))

    return compute


def feature_backend() -> str:
    """Return the engine from `toolkit.engines.frontend_engine`, after checking that it imports.

    Raises:
      EngineError: the engine is kaldifeat, which cannot be imported.
    """
    engine = frontend_engine()
    if engine == "kaldifeat" and (problem := kaldifeat_import_error()):
        raise EngineError(
            f"kaldifeat cannot be imported ({problem}). Set {FRONTEND_VARIABLE}=torch to compute"
            " features without it"
        )
    return engine


def engine_version(engine: str) -> str:
    """Return an engine's name and version, such as "torch 2.13.0"."""
    return f"{engine} {metadata.version(engine)}"


@cache
def kaldifeat_import_error() -> str:
    """Return why kaldifeat cannot be imported; "" if it can."""
    import torch  # noqa: F401 - before kaldifeat, whose library needs torch's to be loaded

    try:
        import kaldifeat  # noqa: F401
    except ImportError as error:
        return str(error)
    return ""


PREEMPHASIS = 0.97  # Kaldi's
FRAMES_PER_BLOCK = 256
"""Frames computed at a time on a CPU, so that windows and spectra stay in its cache."""


def hertz_to_mel(hertz: Tensor) -> Tensor:
    """Convert frequencies in Hz to Kaldi's mel scale, with Kaldi's rounding: [...] float32.

    The logarithm is correctly rounded, like the C library's and unlike torch's: at 2,840 mel the
    last bit is worth 2.4e-4 mel, and narrow filters show it in their energies.
    """
    return 1127 * (1 + hertz.float() / 700).double().log().float()


def mel_to_hertz(mels: Tensor) -> Tensor:
    """Convert mel values to Hz: [...] float64."""
    return 700 * ((mels.double() / 1127).exp() - 1)


def mel_points(num_bins: int, low: float, high: float) -> Tensor:
    """Return the mel values of the filters' edges and peaks: [M + 2] float32.

    Filter m rises from point m to point m + 1, where the next begins, and falls to point m + 2.

    Args:
      num_bins: M, the number of filters.
      low: lower edge of the first filter in Hz.
      high: upper edge of the last filter in Hz.
    """
    first, last = hertz_to_mel(torch.tensor([low, high]))
    return first + torch.arange(num_bins + 2) * ((last - first) / (num_bins + 1))


def mel_filters(points: Tensor, size: int, rate: float) -> Tensor:
    """Return Kaldi's mel filters: triangles on the mel scale with peak 1.

    Args:
      points: [M + 2], from `mel_points`.
      size: N, the size of the FFT.
      rate: sampling rate in Hz.

    Returns:
      [N / 2, M] float32; as in Kaldi the bin of the Nyquist frequency is left out.
    """
    left_edge, peak, right_edge = points[:-2], points[1:-1], points[2:]  # [M] each, in mel
    bins = hertz_to_mel(torch.arange(size // 2) * (rate / size))[:, None]  # [N / 2, 1], in mel
    # Both sides of every triangle, [N / 2, M]; negative outside it
    rising = (bins - left_edge) / (peak - left_edge)
    falling = (right_edge - bins) / (right_edge - peak)
    return torch.minimum(rising, falling).clamp(min=0)


class FilterBank(nn.Module):
    """Computes mel energies of frames, in Kaldi's order of operations.

    The mean of each frame is subtracted, then 0.97 times the previous sample (pre-emphasis).
    Povey's window and zero padding to a power of two follow. The order affects more than the last
    bit: a narrow filter may hold a thousandth of the amplitude, and its logarithm shows one
    rounding of a sample. For noise and 80 filters the largest error is 8e-4 with one rounding
    fewer in the pre-emphasis, and 2e-5 with Kaldi's roundings. Frames are those of
    `--snip-edges=false`: the signal is mirrored at both ends.

    Args:
      filters: [N / 2, M], from `mel_filters`, N a power of two.
      window: W, the window's length in samples, W <= N.
      step: samples from frame to frame.
      power: whether to sum the power of the spectrum; False: its magnitude.
    """

    def __init__(self, filters: Tensor, window: int, step: int, power: bool = True) -> None:
        super().__init__()
        self._step, self._power = step, power
        # Povey's window: (0.5 - 0.5 cos(2 pi n / (W - 1)))^0.85
        angles = 2 * math.pi / (window - 1) * torch.arange(window, dtype=torch.float64)
        self.register_buffer("_window", (0.5 - 0.5 * angles.cos()).pow(0.85).float())
        self.register_buffer("_filters", filters)

    def forward(self, *utterances: Tensor) -> Tensor:
        """Compute the mel energies of one utterance or several.

        Args:
          utterances: [S] float32 each, S >= W, on the module's device.

        Returns:
          [T, M] float32, the utterances' frames one after the other, round(S / step) of each.
        """
        first, *more_frames = (self._frames(samples) for samples in utterances)
        frames = torch.cat([first, *more_frames]) if more_frames else first
        if frames.device.type != "cpu":
            return self._energies(frames)
        return torch.cat([self._energies(block) for block in frames.split(FRAMES_PER_BLOCK)])

    def _frames(self, samples: Tensor) -> Tensor:
        """Return overlapping windows [T, W] as views of the samples."""
        size = len(self._window)
        # Frame t is centred on sample (t + 1 / 2) * step; both ends are mirrored as far as needed.
        count = (len(samples) + self._step // 2) // self._step
        num_mirrored_left = (size - self._step) // 2
        num_mirrored_right = max(
            0, (count - 1) * self._step + size - num_mirrored_left - len(samples)
        )
        mirrored = [
            samples[:num_mirrored_left].flip(0),
            samples,
            samples[len(samples) - num_mirrored_right :].flip(0),
        ]
        return torch.cat(mirrored).as_strided((count, size), (self._step, 1))

    def _energies(self, frames: Tensor) -> Tensor:
        """Compute the mel energies of frames [T, W]: [T, M]."""
        # [T, N] zeros, N the FFT's size; the first W columns become the windowed frames.
        padded = frames.new_zeros(len(frames), 2 * len(self._filters))
        windowed = padded[:, : frames.shape[1]]
        # Kaldi's order: mean, pre-emphasis, window, power of the spectrum without its last bin.
        centred = frames - frames.mean(dim=1, keepdim=True)
        # Not `torch.sub(..., alpha=PREEMPHASIS)`: that rounds once where Kaldi rounds twice.
        torch.sub(centred[:, 1:], PREEMPHASIS * centred[:, :-1], out=windowed[:, 1:])
        torch.mul(centred[:, 0], 1 - PREEMPHASIS, out=windowed[:, 0])
        windowed *= self._window
        spectrum = torch.fft.rfft(padded)[:, :-1].abs()
        return (spectrum.square_() if self._power else spectrum) @ self._filters


class FlooredLog(nn.Module):
    """Computes logarithms of energies, which are floored at Kaldi's 2^-23."""

    def forward(self, energies: Tensor) -> Tensor:
        """Compute the logarithms in place."""
        return energies.clamp_(min=torch.finfo(torch.float32).eps).log_()


# Kaldi's constants: cepstral lifter, order of the linear prediction, exponent of the loudness, and
# smallest factor of the residual energy per order.
LIFTER = 22
LPC_ORDER = 12
COMPRESSION = 0.33333
SMALLEST_GAIN = 1e-5


def lifter(num_ceps: int) -> Tensor:
    """Return the liftering factors of the cepstral coefficients: [num_ceps] float64."""
    orders = torch.arange(num_ceps, dtype=torch.float64)
    return 1 + LIFTER / 2 * torch.sin(math.pi * orders / LIFTER)


def cepstral_transform(mel_bins: int, num_ceps: int) -> Tensor:
    """Return Kaldi's matrix from log-mel values to MFCC: orthonormal DCT-II, then lifter.

    Returns:
      [mel_bins, num_ceps] float64.
    """
    # C_k = sqrt(2 / M) sum_m cos(pi k (m + 1/2) / M) x_m, and sqrt(1 / M) for k = 0
    filters = torch.arange(mel_bins, dtype=torch.float64) + 0.5
    orders = torch.arange(num_ceps, dtype=torch.float64)
    matrix = math.sqrt(2 / mel_bins) * torch.cos(math.pi / mel_bins * filters[:, None] * orders)
    matrix[:, 0] = math.sqrt(1 / mel_bins)
    return matrix * lifter(num_ceps)


class CepstralTransform(nn.Module):
    """Computes MFCC from log-mel values: `cepstral_transform` in float32.

    Args:
      mel_bins: M, the number of filters.
      num_ceps: coefficients to compute, C0 included.
    """

    def __init__(self, mel_bins: int, num_ceps: int) -> None:
        super().__init__()
        self.register_buffer("_matrix", cepstral_transform(mel_bins, num_ceps).float())

    def forward(self, log_mel: Tensor) -> Tensor:
        """Transform log-mel values [T, M]; return [T, num_ceps]."""
        return log_mel @ self._matrix


class PerceptualLinearPrediction(nn.Module):
    """Computes PLP from mel energies (Hermansky 1990).

    The autocorrelation and all after it are float64: where a spectrum has a high peak, the
    recursion amplifies rounding errors. C0 is the logarithm of the residual energy, at least 2^-23
    as in kaldifeat. Frames without energy are NaN.

    Args:
      points: [M + 2], from `mel_points`.
      num_ceps: coefficients to compute, C0 included; at most 13.
    """

    def __init__(self, points: Tensor, num_ceps: int) -> None:
        super().__init__()
        # Equal-loudness curve at the filters' centres f: with f^2 in Hz^2,
        # (f^2 / (f^2 + 1.6e5))^2 (f^2 + 1.44e6) / (f^2 + 9.61e6)
        square = mel_to_hertz(points[1:-1]) ** 2
        loudness = (square / (square + 1.6e5)) ** 2 * (square + 1.44e6) / (square + 9.61e6)
        self.register_buffer("_loudness", loudness.float())
        # The inverse DFT of a spectrum [M + 2] and its mirror image: [order + 1, M + 2].
        steps = len(points) - 1
        angles = torch.arange(LPC_ORDER + 1)[:, None] * torch.arange(steps + 1).double()
        cosines = torch.cos(math.pi / steps * angles) / steps
        cosines[:, [0, -1]] /= 2
        self.register_buffer("_cosines", cosines)
        self.register_buffer("_lifter", lifter(num_ceps))

    def forward(self, energies: Tensor) -> Tensor:
        """Transform mel energies [T, M] float32; return [T, num_ceps] float32."""
        # Intensity-loudness power law, [T, M]; the first and last filter are repeated, [T, M + 2].
        loudness = (energies * self._loudness).pow_(COMPRESSION).double()
        spectrum = torch.cat([loudness[:, :1], loudness, loudness[:, -1:]], dim=1)
        # [order + 1, T] autocorrelation, [order, T] predictor and [T] residual energy
        predictor, residual = durbin(self._cosines @ spectrum.T)
        c0 = residual.log().clamp(min=torch.finfo(torch.float32).eps)
        cepstra = torch.cat([c0[None], cepstrum(predictor)])[: len(self._lifter)]
        return (cepstra.T * self._lifter).float()


def durbin(autocorrelation: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the linear prediction coefficients of frames by the Levinson-Durbin recursion.

    Args:
      autocorrelation: [P + 1, T].

    Returns:
      `a` [P, T] of the inverse filter 1 + a_1 z^-1 + ..., and the residual energy [T]. As in Kaldi,
      each order multiplies the energy by at least 1e-5.
    """
    order = len(autocorrelation) - 1
    predictor = torch.empty_like(autocorrelation[1:])
    energy = autocorrelation[0]
    for i in range(order):
        coefficients = predictor[:i]
        lagged = autocorrelation[1 : i + 1].flip(0)
        # k = (r_{i+1} + sum_j a_j r_{i+1-j}) / E; then E <- E (1 - k^2),
        # a_j <- a_j - k a_{i+1-j} and a_{i+1} = -k, with the orders j counted from 1.
        reflection = (autocorrelation[i + 1] + (coefficients * lagged).sum(dim=0)) / energy
        energy = energy * (1 - reflection.square()).clamp(min=SMALLEST_GAIN)
        predictor[:i] = coefficients - reflection * coefficients.flip(0)
        predictor[i] = -reflection
    return predictor, energy


def cepstrum(predictor: Tensor) -> Tensor:
    """Return cepstral coefficients 1 to P [P, T] of the filters 1 / (1 + a_1 z^-1 + ...).

    Args:
      predictor: a, [P, T].
    """
    cepstra = torch.empty_like(predictor)
    for n in range(len(predictor)):
        # c_n = -a_n - sum_{k=1}^{n-1} (k / n) c_k a_{n-k}; here n counts from 0
        weights = torch.arange(n, 0, -1, dtype=predictor.dtype, device=predictor.device) / (n + 1)
        # [n, T]: row j is a_(j+1) c_(n-j), so that the cepstra are reversed
        products = predictor[:n] * cepstra[:n].flip(0) * weights[:, None]
        cepstra[n] = -predictor[n] - products.sum(dim=0)
    return cepstra
