"""A self-test of about a second for each engine, for `toolkit doctor`.

`python -m toolkit.doctor.selftests NAME` runs one, with several names all in one process. A test
returns in a few words what it has tested, and raises when the engine gives a wrong result.
"""

import io
import json
import sys
import tempfile
import wave
from collections.abc import Callable, Sequence
from pathlib import Path


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise RuntimeError(f"wrong result: {what}")


def _tone(path: Path, seconds: int = 1) -> None:
    """Write a 16 kHz mono WAV file with the standard library alone."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        period = b"".join(n.to_bytes(2, "little", signed=True) for n in (0, 8000, 0, -8000))
        file.writeframes(period * (4000 * seconds))


def torch_matmul() -> str:
    """Compare a matrix product with float64, and its gradient with the formula."""
    import torch

    torch.manual_seed(0)
    a, b = torch.randn(64, 64), torch.randn(64, 64, requires_grad=True)
    product = a @ b
    product.sum().backward()
    _expect(torch.allclose(product.double(), a.double() @ b.double(), atol=1e-4), "matrix product")
    assert b.grad is not None
    _expect(torch.allclose(b.grad, a.sum(0)[:, None].expand(64, 64), atol=1e-4), "gradient")
    return "matrix product and gradient"


def search() -> str:
    """Search a graph with the engine that recipes use here."""
    from toolkit.fsa.search import intersect_two_frames

    return intersect_two_frames()


def k2_search() -> str:
    """Search a graph with k2."""
    from toolkit.fsa.search import searching_with

    with searching_with("k2"):
        return search()


def kaldifeat_fbank() -> str:
    """Extract 64 log-mel energies of one second of noise."""
    import torch  # before kaldifeat, whose library needs torch's to be loaded

    import kaldifeat  # isort: skip

    options = kaldifeat.FbankOptions()
    options.frame_opts.dither = 0
    options.frame_opts.snip_edges = False
    options.mel_opts.num_bins = 64
    torch.manual_seed(0)
    features = kaldifeat.Fbank(options)(torch.randn(16000) * 1000)
    _expect(tuple(features.shape) == (100, 64), f"shape {tuple(features.shape)}")
    _expect(bool(torch.isfinite(features).all()), "a value that is not finite")
    return "100 frames of 64 log-mel energies"


def frontend() -> str:
    """Extract log-mel energies of a tone with the engine that recipes use here."""
    import torch

    from toolkit.features.engine import engine_version
    from toolkit.features.frontend import Frontend, FrontendConfig

    compute = Frontend(FrontendConfig())
    features = compute(0.1 * torch.sin(torch.arange(16000) * (2 * torch.pi * 1000 / 16000)))
    _expect(tuple(features.shape) == (100, 64), f"shape {tuple(features.shape)}")
    _expect(int(features[50].argmax()) == 21, f"filter {int(features[50].argmax())} of a tone")
    return f"computed by {engine_version(compute.engine)}"


def lhotse_cut() -> str:
    """Load half a recording as a cut."""
    from lhotse import Recording

    with tempfile.TemporaryDirectory() as folder:
        _tone(Path(folder, "tone.wav"))
        cut = Recording.from_file(Path(folder, "tone.wav")).to_cut().truncate(duration=0.5)
        samples = cut.load_audio()
    _expect(samples.shape == (1, 8000), f"shape {samples.shape}")
    _expect(abs(samples.max() - 8000 / 32768) < 1e-4, f"maximum {samples.max()}")
    return "half a recording loaded as a cut"


def sentencepiece_round_trip() -> str:
    """Train a model of a few pieces, then encode and decode with it."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["YES NO YES", "NO YES NO"] * 5),
        model_writer=model,
        vocab_size=12,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    _expect(processor.decode(processor.encode("YES NO")) == "YES NO", "round trip of a text")
    return f"trained {processor.get_piece_size()} pieces, text round trip"


def soundfile_flac() -> str:
    """Write and read FLAC."""
    import numpy
    import soundfile

    samples = (1000 * numpy.sin(numpy.arange(1600))).astype(numpy.int16)
    file = io.BytesIO()
    soundfile.write(file, samples, 16000, format="FLAC")
    file.seek(0)
    back, rate = soundfile.read(file, dtype="int16")
    _expect(rate == 16000 and bool((back == samples).all()), "samples read back")
    return "FLAC round trip"


def av_flac() -> str:
    """Write FLAC into a Matroska file and read it back."""
    import av
    import numpy

    from toolkit.corpus.audio_file import open_audio

    samples = (1000 * numpy.sin(numpy.arange(1600))).astype(numpy.int16)
    file = io.BytesIO()
    with av.open(file, "w", format="matroska") as output:
        stream = output.add_stream("flac", rate=16000, layout="mono")
        frame = av.AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
        frame.sample_rate, frame.pts = 16000, 0
        for part in (frame, None):
            output.mux(stream.encode(part))
    with open_audio(file) as opened:
        back = opened.read(dtype="int16")
    _expect(bool(numpy.array_equal(back, samples)), "samples read back")
    return "Matroska round trip"


def jiwer_wer() -> str:
    """Compute the error rate of two words."""
    import jiwer

    _expect(jiwer.wer("YES NO", "YES ON") == 0.5, "error rate of one wrong word in two")
    return "word error rate"


def click_command() -> str:
    """Run a command and read its output."""
    import click
    from click.testing import CliRunner

    @click.command()
    def hello() -> None:
        click.echo("hello")

    _expect(CliRunner().invoke(hello).output == "hello\n", "output of a command")
    return "command"


def numba_loop() -> str:
    """Compile a loop."""
    import numba

    @numba.njit
    def total(n: int) -> int:
        result = 0
        for i in range(n):
            result += i
        return result

    _expect(total(10) == 45, "sum of a compiled loop")
    return "compiled loop"


def espeak_library() -> str:
    """Load the speech synthesiser of the demo corpus and initialise it on its data."""
    import ctypes

    import espeakng_loader

    library = ctypes.CDLL(espeakng_loader.get_library_path())
    synchronous = 2
    data = str(espeakng_loader.get_data_path()).encode()
    rate = library.espeak_Initialize(synchronous, 0, data, 0)
    _expect(rate > 0, "initialisation failed")
    return f"library and data, {rate} Hz"


def gpu_matmul() -> str:
    """Multiply on the first GPU; "no GPU" where torch sees none."""
    import torch

    if not torch.cuda.is_available():
        return "no GPU that torch can use"
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    gib = torch.cuda.get_device_properties(0).total_memory / 2**30
    a = torch.ones(64, 64, device="cuda")
    _expect((a @ a)[0, 0].item() == 64, "matrix product on the GPU")
    return f"{', '.join(names)} ({gib:.0f} GiB), matrix product"


def gemm() -> str:
    """Print the speed of the matrix product in GFLOP/s per core."""
    from toolkit.environment import gemm_gflops

    return f"{gemm_gflops():.1f}"


TESTS: dict[str, Callable[[], str]] = {
    "torch": torch_matmul,
    "k2": k2_search,
    "search": search,
    "kaldifeat": kaldifeat_fbank,
    "frontend": frontend,
    "lhotse": lhotse_cut,
    "soundfile": soundfile_flac,
    "av": av_flac,
    "sentencepiece": sentencepiece_round_trip,
    "jiwer": jiwer_wer,
    "numba": numba_loop,
    "click": click_command,
    "espeak": espeak_library,
    "gpu": gpu_matmul,
    "gemm": gemm,
}


def run_together(names: Sequence[str]) -> None:
    """Run several tests, and print a line of JSON for each that passes."""
    for name in names:
        try:
            text = TESTS[name]()
        except Exception as error:  # it is run again alone, for its message
            print(f"{name}: {error}", file=sys.stderr)
        else:
            print(json.dumps({"passed": [name, text]}), flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        print(TESTS[sys.argv[1]]())
    else:
        run_together(sys.argv[1:])
