"""Test the machine and the packages that the recipes need, and print how to repair them.

Each package gets a task whose answer is known, in a process of its own, so that a crash or a hang
is a result like any other. `python -m toolkit.doctor NAME` runs the task of one package. Only the
standard library is imported at the top: the doctor must run when everything else is broken.
"""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import wave
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path

from toolkit.environment import git_commit, machine, project_root, usable_cpus, versions

TIMEOUT = 300.0
"""Seconds that a self-test may take: the first one after an installation compiles kernels."""
K2_VERSION = "1.23.4"
K2_WHEEL = (
    "k2==1.23.4 --hash=sha256:1404589732fdb7f6f5bf62297a20dd73318b7b4f2e10dd52dc3d5b6669688a4c"
)
"""The wheel for Python 3.10, by its hash: old versions of pip would take any of k2's wheels, and
new ones take none of 1.23.4's."""


def _installed(name: str) -> str:
    """Return the version of a distribution; "" where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


REFERENCE = _installed("torch").startswith("1.") or _installed("k2") == K2_VERSION
"""Whether this is the reference environment (`make setup-reference`), of fixed versions."""
TORCH = "torch==1.13.1" if REFERENCE else "torch>=1.13.1"
LHOTSE = "lhotse==1.32.0" if REFERENCE else "lhotse>=1.32,<1.34"


@dataclass(frozen=True)
class Engine:
    """A package that the recipes depend on; `SELF_TESTS` has a test of this name."""

    name: str
    """Name of the installed distribution."""
    requirements: tuple[str, ...]
    """Requirements for pip to repair the package, in one command because versions depend on each
    other."""
    without: str = ""
    """Effect if the package is not installed; empty: the recipes do not run."""


ENGINES = (
    Engine("torch", (TORCH,)),
    Engine("k2", (TORCH, f"k2=={K2_VERSION}"), without="the toolkit's own search is used"),
    Engine("kaldifeat", (), without="torch computes the features"),
    Engine("lhotse", (LHOTSE, "lilcom", "urllib3")),
    Engine("soundfile", ("soundfile",)),
    Engine("av", ("av>=17",), without="M4A, WebM, WMA, AMR and video files are not read"),
    Engine("sentencepiece", ("sentencepiece",)),
    Engine("jiwer", ("jiwer",)),
    Engine("numba", ("numba",)),
    Engine("click", ("click>=8",)),
    Engine("espeakng-loader", ("espeakng-loader",), without="no demo corpus can be made"),
)


@dataclass(frozen=True)
class Finding:
    """The result of testing an engine."""

    engine: Engine
    status: str
    """"ok", "BROKEN", "MISSING", or "absent" (not installed and not needed)."""
    version: str
    text: str

    @property
    def fatal(self) -> bool:
        """Whether recipes cannot run because of this finding."""
        return self.status in ("BROKEN", "MISSING")


def run_process(command: Sequence[str], timeout: float = TIMEOUT) -> tuple[bool, str]:
    """Run a command in the project's root.

    Returns:
      Whether it succeeded, and the last line of its output or what went wrong.
    """
    # One thread each: the self-tests run side by side.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command,
            cwd=project_root(),
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        return False, f"no answer in {timeout:g} s: it hangs, or the machine is too busy"
    except OSError as error:
        return False, str(error)
    # A crash in native code ends the process by a signal, without a message.
    if done.returncode < 0:
        return False, f"killed by {signal.Signals(-done.returncode).name}"
    output = done.stderr if done.returncode else done.stdout.strip() or done.stderr
    lines = output.decode(errors="replace").strip().splitlines()
    text = lines[-1].strip() if lines else ""
    return done.returncode == 0, text or (f"exit status {done.returncode}" * bool(done.returncode))


def run_self_test(name: str) -> tuple[bool, str]:
    """Run one of `SELF_TESTS` in a process of its own; see `run_process`."""
    return run_process([sys.executable, "-m", "toolkit.doctor", name])


def check_engine(engine: Engine) -> Finding:
    """Test one engine."""
    version = _installed(engine.name)
    if not version:
        status, text = ("absent", f": {engine.without}") if engine.without else ("MISSING", "")
        return Finding(engine, status, "", f"not installed{text}")
    works, text = run_self_test(engine.name)
    return Finding(engine, "ok" if works else "BROKEN", version, text)


def remedy(finding: Finding) -> str:
    """Return the command that repairs a fatal finding."""
    name, broken = finding.engine.name, finding.status == "BROKEN"
    pip = f"{sys.executable} -m pip"
    if name == "kaldifeat":
        script = project_root() / "setup" / "kaldifeat" / "install.sh"
        first_command = f"{pip} uninstall -y kaldifeat; " if broken else ""
        if not script.exists():  # the package alone is installed
            script = Path("setup/kaldifeat/install.sh")
            first_command = f"in a checkout of the project: {first_command}"
        return f"{first_command}bash {script} {sys.executable}"
    # k2 is compiled for one version of torch: another version of k2 cannot simply be reinstalled.
    if name == "k2" and finding.version not in ("", K2_VERSION):
        return (
            f"{pip} uninstall k2 (the toolkit's own search replaces it), or install the wheel for"
            f" torch {_installed('torch')}, see docs/install.md"
        )
    if name == "k2":
        options = "--require-hashes --no-deps" + " --force-reinstall" * broken
        wheel = f"echo '{K2_WHEEL}' > k2.txt && {pip} install {options} -r k2.txt"
        return f"{pip} install 'pip<24' && {wheel}"
    if broken:
        # The version that the other packages fit, without its build: 2.15.0+cpu becomes 2.15.0.
        version = finding.version.partition("+")[0]
        return f"{pip} install --force-reinstall --no-deps '{name}=={version}'"
    packages = " ".join(f"'{requirement}'" for requirement in finding.engine.requirements)
    return f"{pip} install {packages}"


def run_checks(engines: Sequence[Engine] = ENGINES, as_json: bool = False) -> bool:
    """Print the state of the machine and the engines to standard output.

    Args:
      engines: the packages to test.
      as_json: print one JSON object instead of lines.

    Returns:
      Whether all packages that the recipes need work. Java and a GPU are optional.
    """
    # Describe the machine first, as its speed is measured on idle cores. Then test all packages in
    # parallel; each is printed when it and those before it are done.
    about = _about_machine()
    with ThreadPoolExecutor(usable_cpus()) as pool:
        results = pool.map(check_engine, engines)
        if not as_json:
            print("Machine", *(f"  {name:<11} {text}" for name, text in about.items()), sep="\n")
            print("Packages", flush=True)
        findings = []
        for finding in results:
            findings.append(finding)
            if not as_json:
                label = f"{finding.engine.name} {finding.version}".strip()
                print(f"  {finding.status:<8} {label:<24} {finding.text}", flush=True)
                if finding.fatal:
                    print(f"           to repair it: {remedy(finding)}")
    fatal = [finding.engine.name for finding in findings if finding.fatal]
    if as_json:
        packages = [
            {
                "name": finding.engine.name,
                "status": finding.status.lower(),
                "version": finding.version,
                "text": finding.text,
                "remedy": remedy(finding) if finding.fatal else None,
            }
            for finding in findings
        ]
        print(json.dumps({"works": not fatal, "machine": about, "packages": packages}, indent=1))
    elif fatal:
        print(f"{len(fatal)} of {len(engines)} packages do not work: {', '.join(fatal)}.")
        target = "setup-reference" if REFERENCE else "setup"
        print(f"`make -B {target}` in the project's folder installs what is missing.")
    else:
        print("All packages required by the recipes work on this machine.")
    return not fatal


def _about_machine() -> dict[str, str]:
    """Describe the machine, and the device and precision that the recipes would use here."""
    texts = {}
    for name in ("features", "search", "gpu", "gemm"):  # one by one: "gemm" measures a speed
        works, text = run_self_test(name)
        texts[name] = text if works else f"fails: {text}"
    has_java, java = run_process(["java", "-version"], 20.0)
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    has_cards, cards = run_process(query, 20.0)
    facts, disk = machine(), shutil.disk_usage(project_root())
    engines = {engine.name for engine in ENGINES}
    other_versions = [
        f"{name} {version}" for name, version in versions().items() if name not in engines
    ]
    build = re.search(r"build (\d[\w.]*)", java)
    if has_cards:
        texts["gpu"] += f" (nvidia-smi lists {cards})"
    if REFERENCE and texts["gpu"].startswith("fails"):
        texts["gpu"] += "; torch 1.13.1 does not support Hopper and later GPUs, but torch 2 does"
    return {
        "python": f"{sys.version.split()[0]} ({sys.executable})",
        "packages": ", ".join(other_versions[1:]),
        "commit": git_commit() or "not a git checkout with commits",
        "processor": f"{facts['cpu']}, {facts['cpus']} CPUs usable",
        "memory": f"{facts['memory_gib']} GiB",
        "disk": f"{disk.free / 2**30:.0f} of {disk.total / 2**30:.0f} GiB free",
        "Java": build[1] if has_java and build else "none (only the Spark executor needs it)",
        "features": texts["features"],
        "search": texts["search"],
        "GPU": texts["gpu"],
        "BLAS": texts["gemm"],
    }


def _expect(holds: bool, expectation: str) -> None:
    """Raise an error if a self-test's result is wrong."""
    if not holds:
        raise RuntimeError(f"wrong result: {expectation}")


def _torch() -> str:
    """Test torch's matrix product and gradients."""
    import torch

    a, b = torch.randn(64, 64), torch.randn(64, 64, requires_grad=True)
    product = a @ b
    product.sum().backward()
    _expect(torch.allclose(product.double(), a.double() @ b.double(), atol=1e-4), "matrix product")
    gradient = a.sum(0)[:, None].expand(64, 64)
    _expect(b.grad is not None and torch.allclose(b.grad, gradient, atol=1e-4), "gradient")
    return "matrix product and gradient"


def _search(engine: str | None = None) -> str:
    """Test a search engine with a graph of two frames."""
    from toolkit.fsa.search import intersect_two_frames, searching_with

    with searching_with(engine) if engine else nullcontext():
        return intersect_two_frames()


def _features(engine: str | None = None) -> str:
    """Test the features of a tone, from one of the engines or the default."""
    import torch

    from toolkit.features.config import FrontendConfig
    from toolkit.features.frontend import Frontend, engine_version

    compute = Frontend(FrontendConfig(), engine)
    features = compute(0.1 * torch.sin(torch.arange(16000) * (2 * torch.pi * 1000 / 16000)))
    _expect(tuple(features.shape) == (100, 64), f"shape {tuple(features.shape)}")
    # 1 s of audio at a shift of 10 ms; mel filter 21 of 64 is the one that a tone of 1 kHz excites.
    _expect(int(features[50].argmax()) == 21, f"peak in filter {int(features[50].argmax())}")
    return f"computed by {engine_version(compute.engine)}"


def _lhotse() -> str:
    """Test that lhotse reads a WAV file."""
    from lhotse import Recording

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tone.wav")
        with wave.open(str(path), "wb") as file:
            file.setparams((1, 2, 16000, 0, "NONE", ""))
            # Four samples a period: a tone of 4 kHz, 1 s long.
            period = (n.to_bytes(2, "little", signed=True) for n in (0, 8000, 0, -8000))
            file.writeframes(b"".join(period) * 4000)
        cut = Recording.from_file(path).to_cut().truncate(duration=0.5)
        samples = cut.load_audio()
    _expect(samples.shape == (1, 8000), f"shape {samples.shape}")
    _expect(abs(samples.max() - 8000 / 32768) < 1e-4, f"maximum {samples.max()}")
    return "half a recording loaded as a cut"


def _soundfile() -> str:
    """Test that soundfile writes and reads FLAC."""
    import numpy
    import soundfile

    samples = (1000 * numpy.sin(numpy.arange(1600))).astype(numpy.int16)
    file = io.BytesIO()
    soundfile.write(file, samples, 16000, format="FLAC")
    file.seek(0)
    decoded, rate = soundfile.read(file, dtype="int16")
    _expect(rate == 16000 and bool((decoded == samples).all()), "samples read back")
    return "FLAC round trip"


def _av() -> str:
    """Write FLAC into a Matroska file and read it back."""
    import av
    import numpy

    from toolkit.corpus.audio import open_audio

    samples = (1000 * numpy.sin(numpy.arange(1600))).astype(numpy.int16)
    file = io.BytesIO()
    with av.open(file, "w", format="matroska") as output:
        stream = output.add_stream("flac", rate=16000, layout="mono")
        frame = av.AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
        frame.sample_rate, frame.pts = 16000, 0
        for part in (frame, None):
            output.mux(stream.encode(part))
    with open_audio(file) as opened:
        decoded = opened.read(dtype="int16")
    _expect(bool(numpy.array_equal(decoded, samples)), "samples read back")
    return "Matroska round trip"


def _sentencepiece() -> str:
    """Test that sentencepiece trains a model and splits words."""
    import sentencepiece

    model, texts = io.BytesIO(), iter(["YES NO YES", "NO YES NO"] * 5)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=texts,
        model_writer=model,
        vocab_size=12,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    _expect(processor.decode(processor.encode("YES NO")) == "YES NO", "round trip of a text")
    return f"trained {processor.get_piece_size()} pieces, text round trip"


def _jiwer() -> str:
    """Test jiwer's word error rate."""
    import jiwer

    _expect(jiwer.wer("YES NO", "YES ON") == 0.5, "error rate of one wrong word in two")
    return "word error rate"


def _numba() -> str:
    """Test that numba compiles a function."""
    import numba

    @numba.njit
    def total(n: int) -> int:
        result = 0
        for i in range(n):
            result += i
        return result

    _expect(total(10) == 45, "sum of a compiled loop")
    return "compiled loop"


def _click() -> str:
    """Test that click runs a command."""
    import click
    from click.testing import CliRunner

    command = click.Command("hello", callback=lambda: click.echo("hello"))
    _expect(CliRunner().invoke(command).output == "hello\n", "output of a command")
    return "command"


def _espeak() -> str:
    """Test that the library of espeak-ng can be loaded."""
    import ctypes

    import espeakng_loader

    library = ctypes.CDLL(espeakng_loader.get_library_path())
    synchronous = 2  # AUDIO_OUTPUT_SYNCHRONOUS of speak_lib.h
    rate = library.espeak_Initialize(
        synchronous, 0, str(espeakng_loader.get_data_path()).encode(), 0
    )
    _expect(rate > 0, "initialisation failed")
    return f"library and data, {rate} Hz"


def _gpu() -> str:
    """Test a matrix product on the GPU, if there is one."""
    import torch

    if not torch.cuda.is_available():
        return "no GPU that torch can use"
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    gib = torch.cuda.get_device_properties(0).total_memory / 2**30
    a = torch.ones(64, 64, device="cuda")
    _expect((a @ a)[0, 0].item() == 64, "matrix product on the GPU")
    return f"{', '.join(names)} ({gib:.0f} GiB), matrix product"


def _gemm() -> str:
    """Measure the speed of matrix products on one core."""
    from toolkit.environment import gemm_gflops

    return f"{gemm_gflops():.1f} GFLOP/s per core"


SELF_TESTS: dict[str, Callable[[], str]] = {
    "torch": _torch,
    "k2": partial(_search, "k2"),
    "kaldifeat": partial(_features, "kaldifeat"),
    "lhotse": _lhotse,
    "soundfile": _soundfile,
    "av": _av,
    "sentencepiece": _sentencepiece,
    "jiwer": _jiwer,
    "numba": _numba,
    "click": _click,
    "espeakng-loader": _espeak,
    "features": _features,
    "search": _search,
    "gpu": _gpu,
    "gemm": _gemm,
}
"""A test of about a second for each package, and for the engines and processors that the recipes
would use here. Each returns in a few words what it tested, and raises an error if a result is
wrong."""


if __name__ == "__main__":
    print(SELF_TESTS[sys.argv[1]]())
