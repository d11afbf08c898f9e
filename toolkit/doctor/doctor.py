"""Prints what works on this machine, what does not, and the command that repairs it.

Only the standard library is imported here: the doctor must run when everything else is broken.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path

from toolkit.environment import (
    BLAS_VARIABLE,
    git_commit,
    machine,
    project_root,
    usable_cpus,
    versions,
)

K2_VERSION = "1.23.4"


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
    """A package that the recipes depend on."""

    name: str
    """Name of the installed distribution."""
    test: str
    """Its entry in `toolkit.doctor.selftests.TESTS`."""
    requirements: tuple[str, ...]
    """What pip must install to repair it, in one command, as versions depend on each other."""
    without: str = ""
    """What happens where it is not installed; empty: the recipes do not run."""


ENGINES = (
    Engine("torch", "torch", (TORCH,)),
    Engine("k2", "k2", (TORCH, f"k2=={K2_VERSION}"), without="the toolkit's own engine searches"),
    Engine("kaldifeat", "kaldifeat", (), without="torch computes the features"),
    Engine("lhotse", "lhotse", (LHOTSE, "lilcom", "urllib3")),
    Engine("soundfile", "soundfile", ("soundfile",)),
    Engine("sentencepiece", "sentencepiece", ("sentencepiece",)),
    Engine("jiwer", "jiwer", ("jiwer",)),
    Engine("numba", "numba", ("numba",)),
    Engine("click", "click", ("click>=8",)),
    Engine("espeakng-loader", "espeak", ("espeakng-loader",), without="no demo corpus can be made"),
)


@dataclass(frozen=True)
class ProcessResult:
    """Whether a process succeeded, and its output."""

    works: bool
    text: str
    """Its last line of output, or what went wrong."""
    output: str = ""
    """All of standard output and standard error."""
    timed_out: bool = False
    """Whether it was killed because it took too long."""


@dataclass(frozen=True)
class Finding:
    """The result of testing an engine."""

    engine: Engine
    status: str
    """"ok", "BROKEN", "MISSING", or "absent" for what is not needed."""
    version: str
    text: str

    @property
    def fatal(self) -> bool:
        """Whether recipes cannot run because of it."""
        return self.status in ("BROKEN", "MISSING")


K2_WHEEL = (
    "k2==1.23.4 --hash=sha256:1404589732fdb7f6f5bf62297a20dd73318b7b4f2e10dd52dc3d5b6669688a4c"
)
"""The wheel for Python 3.10: older pips take any of k2's wheels, newer ones none of 1.23.4."""
PATIENCE = 5
"""Factor on the time limit of a test that is repeated."""


def run_process(command: Sequence[str], timeout: float, **variables: str) -> ProcessResult:
    """Run a command in the project's root; a failure, a crash or a hang is a result too.

    Args:
      command: program and arguments.
      timeout: seconds after which it is killed.
      variables: additions to the environment.
    """
    try:
        done = subprocess.run(
            command,
            cwd=project_root(),
            env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        return ProcessResult(False, f"no answer in {timeout:g} s", timed_out=True)
    except OSError as error:
        return ProcessResult(False, str(error))
    output = (done.stdout + done.stderr).decode(errors="replace")
    if done.returncode == 0:
        return ProcessResult(True, _last_line(done.stdout) or _last_line(done.stderr), output)
    if done.returncode < 0:
        return ProcessResult(False, f"killed by {signal.Signals(-done.returncode).name}", output)
    return ProcessResult(False, _last_line(done.stderr) or f"exit status {done.returncode}", output)


def _last_line(output: bytes) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else ""


def self_test(name: str, timeout: float = 60.0, **variables: str) -> ProcessResult:
    """Run one entry of `toolkit.doctor.selftests.TESTS` in its own process."""
    return run_process(
        [sys.executable, "-m", "toolkit.doctor.selftests", name], timeout, **variables
    )


def check_engine(engine: Engine, timeout: float = 60.0) -> Finding:
    """Test one engine; one without an answer after `timeout` seconds gets `PATIENCE` times as long.

    Only the second silence counts: on a busy machine the first import of a package takes minutes.
    """
    version = _installed(engine.name)
    if not version:
        if engine.without:
            return Finding(engine, "absent", "", f"not installed: {engine.without}")
        return Finding(engine, "MISSING", "", "not installed")
    result = self_test(engine.test, timeout)
    if result.timed_out:
        result = self_test(engine.test, PATIENCE * timeout)
    if result.timed_out:
        text = f"{result.text}: it hangs, or the machine is too busy to tell"
        return Finding(engine, "BROKEN", version, text)
    return Finding(engine, "ok" if result.works else "BROKEN", version, result.text)


def remedy(finding: Finding) -> str:
    """Return the command that repairs a fatal finding."""
    if finding.engine.name == "kaldifeat":
        script = project_root() / "setup" / "kaldifeat" / "install.sh"
        remove = f"{sys.executable} -m pip uninstall -y kaldifeat; "
        again = remove if finding.status == "BROKEN" else ""
        if not script.exists():  # the package alone is installed
            script = Path("setup/kaldifeat/install.sh")
            again = f"in a checkout of the project: {again}"
        return f"{again}bash {script} {sys.executable}"
    broken = finding.status == "BROKEN"
    # the version that the others fit, without the part that names a build: 2.15.0+cpu
    same = (f"{finding.engine.name}=={finding.version.partition('+')[0]}",)
    requirements = same if broken else finding.engine.requirements
    packages = " ".join(f"'{requirement}'" for requirement in requirements)
    options = "--force-reinstall --no-deps " if broken else ""
    command = f"{sys.executable} -m pip install {options}{packages}"
    if finding.engine.name == "k2":
        if finding.version not in ("", K2_VERSION):
            return (
                f"{sys.executable} -m pip uninstall k2 (the toolkit searches without it), or the"
                f" wheel for torch {_installed('torch')}: docs/install.md"
            )
        pip = f"{sys.executable} -m pip install"
        hashed = "--require-hashes --no-deps " + ("--force-reinstall " if options else "")
        return f"{pip} 'pip<24' && echo '{K2_WHEEL}' > k2.txt && {pip} {hashed}-r k2.txt"
    return command


def run_checks(engines: Sequence[Engine] = ENGINES) -> bool:
    """Print the state of the machine and the engines to standard output.

    Returns:
      Whether all engines work that the recipes need. Java and a GPU are optional.
    """
    print("Machine")
    for name, text in (*_machine(), *_optional(), *_blas()):
        print(f"  {name:<11} {text}", flush=True)
    print("Packages (each tested in its own process)")
    fatal = []
    with ThreadPoolExecutor(max_workers=usable_cpus()) as pool:
        for finding in pool.map(check_engine, engines):
            label = f"{finding.engine.name} {finding.version}".strip()
            print(f"  {finding.status:<8} {label:<24} {finding.text}", flush=True)
            if finding.fatal:
                fatal.append(finding.engine.name)
                print(f"           to repair it: {remedy(finding)}", flush=True)
    if fatal:
        print(f"{len(fatal)} of {len(engines)} packages do not work: {', '.join(fatal)}.")
        target = "setup-reference" if REFERENCE else "setup"
        print(f"`make -B {target}` in the project's folder installs what is missing.")
        return False
    print("All packages that the recipes need here work.")
    return True


def _machine() -> list[tuple[str, str]]:
    about = machine()
    disk = shutil.disk_usage(project_root())
    engines = {engine.name for engine in ENGINES}
    others = [f"{name} {version}" for name, version in versions().items() if name not in engines]
    return [
        ("python", f"{sys.version.split()[0]} ({sys.executable})"),
        ("packages", ", ".join(others[1:])),
        ("commit", git_commit() or "not a git checkout with commits"),
        ("processor", f"{about['cpu']}, {about['cpus']} CPUs usable"),
        ("memory", f"{about['memory_gib']} GiB"),
        ("disk", f"{disk.free / 2**30:.0f} of {disk.total / 2**30:.0f} GiB free"),
    ]


def _optional() -> list[tuple[str, str]]:
    java = run_process(["java", "-version"], 20.0)
    quoted = re.search(r'"([^"]+)"', java.output) if java.works else None
    gpu = self_test("gpu")
    cards = run_process(
        ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"], 20.0
    )
    card = f" (nvidia-smi sees {cards.text})" if cards.works else ""
    features = self_test("frontend")
    found = self_test("search")
    hint = "; torch 1.13.1 has no code for Hopper and later, torch 2 has" if REFERENCE else ""
    return [
        ("Java", quoted[1] if quoted else "none (only the Spark executor needs it)"),
        ("features", features.text if features.works else f"fail: {features.text}"),
        ("search", found.text if found.works else f"BROKEN: {found.text}"),
        ("GPU", (gpu.text if gpu.works else f"fails: {gpu.text}{hint}") + card),
    ]


def _blas() -> list[tuple[str, str]]:
    measure = partial(self_test, "gemm")
    now = measure()
    if not now.works:
        return [("BLAS", f"cannot be measured: {now.text}")]
    text = f"{now.text} GFLOP/s per core"
    setting = os.environ.get(BLAS_VARIABLE)
    if setting:
        without = measure(**{BLAS_VARIABLE: ""})
        text += f" with {BLAS_VARIABLE}={setting}, {without.text} without it"
    return [("BLAS", text)]
