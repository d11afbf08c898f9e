"""Feature extraction on one core: the toolkit's engines, bare kaldifeat, lhotse, and FFT alone."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import features_gpu as gpu_features
from benchmarks.run import Case, Table, Target, compare, rate_ratio
from benchmarks.synthetic import RATE, write_noise

if TYPE_CHECKING:
    from lhotse.cut import MonoCut
    from torch import Tensor

TO_SHARD = "ours, FLAC to shard"
KALDIFEAT = "kaldifeat, samples to features"


@dataclass(frozen=True)
class Sizes:
    """Sizes of the task and the comparison."""

    files: int = 20
    seconds: float = 10.0
    """Duration of each file."""
    repeats: int = 9


SMOKE = {"sizes": Sizes(files=2, seconds=0.5, repeats=1)}
TARGETS = (
    Target(
        "FLAC to shard, relative to bare kaldifeat on samples", 0.9, rate_ratio(TO_SHARD, KALDIFEAT)
    ),
)


def benchmark(device: str | None = None, sizes: Sizes = Sizes()) -> Table:
    """Measure seconds of audio per second for 64 log-mel (C5) on FLAC files of 10 s of noise.

    Rows that begin with samples exclude the decoding of FLAC. "Ours" is the front end with the
    engine that recipes use on this machine. Without kaldifeat, its row is absent and the ratios are
    to the torch engine. lhotse's default is 80 log-mel by its own torch code; the row of window and
    FFT has frames of 400 samples and a real FFT of 512 points.

    With a device, see `benchmarks.features_gpu`.
    """
    from toolkit.processes.devices import one_thread

    if device is not None:
        return gpu_features.measure(device)

    with tempfile.TemporaryDirectory() as folder, one_thread():
        noise = [write_noise(Path(folder), n, sizes.seconds) for n in range(sizes.files)]
        cases = _cases(noise, sizes.seconds)
        return compare(
            cases,
            unit="s of audio",
            baseline=cases[0].name,
            repeats=sizes.repeats,
            title="Features on one core",
            notes=(f"{sizes.files} FLAC files of noise, {sizes.seconds:g} s each, one at a time",),
        )


def _cases(cuts: "Sequence[MonoCut]", seconds: float) -> list[Case]:
    """Return the cases that are compared."""
    import torch
    from lhotse import Fbank

    from toolkit.features.config import FrontendConfig
    from toolkit.features.cut_audio import load_cut_audio
    from toolkit.features.frontend import Frontend
    from toolkit.features.shards import write_shard

    frontend, by_torch = Frontend(FrontendConfig()), Frontend(FrontendConfig(), "torch")
    lhotse = Fbank()
    window = torch.hann_window(400)  # 25 ms at 16 kHz
    samples = [load_cut_audio(cut) for cut in cuts]
    folder = Path(cuts[0].recording.sources[0].source).parent / "shards"

    def case(name: str, function: Callable[[Any], object], items: Sequence) -> Case:
        def run() -> float:
            for item in items:
                function(item)
            return seconds * len(items)

        return Case(name, run)

    def write(cuts_of_shard: "Sequence[MonoCut]") -> float:
        utterances = ((cut, "noise", frontend(load_cut_audio(cut))) for cut in cuts_of_shard)
        write_shard(folder, 0, utterances, frontend.config)
        return seconds * len(cuts_of_shard)

    cases = [
        case("torch, samples to features", by_torch, samples),
        case("ours, samples to features", frontend, samples),
        case("ours, FLAC to samples", load_cut_audio, cuts),
        case("ours, FLAC to features", lambda cut: frontend(load_cut_audio(cut)), cuts),
        Case(TO_SHARD, lambda: write(cuts)),
        case("lhotse, samples to features", lambda x: lhotse.extract(x, RATE), samples),
        case("lhotse, FLAC to features", lambda cut: cut.compute_features(lhotse), cuts),
        case(
            "window and FFT alone",
            # [T, 400] frames every 10 ms, padded to the next power of two.
            lambda x: torch.fft.rfft(x.unfold(0, 400, 160) * window, n=512),
            samples,
        ),
    ]
    if frontend.engine == "kaldifeat":
        # Kaldi's samples have the range of 16 bits.
        scaled = [x * 32768 for x in samples]
        cases.insert(0, case(KALDIFEAT, _kaldifeat(), scaled))
    return cases


def _kaldifeat() -> "Callable[[Tensor], Tensor]":
    """Return kaldifeat's own front end with the settings of the recipes."""
    import kaldifeat

    options = kaldifeat.FbankOptions()
    options.frame_opts.dither = 0.0  # no random noise: the front end of the recipes has none
    options.mel_opts.num_bins = 64
    return kaldifeat.Fbank(options)
