"""Prints what works on this machine, what does not, and the command that repairs it.

Only the standard library is imported here: the doctor must run when everything else is broken.
"""

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from toolkit.doctor.processes import ProcessResult, passed_together, run_process, self_test
from toolkit.environment import git_commit, machine, project_root, versions
from toolkit.startup import BLAS_VARIABLE

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
    Engine("av", "av", ("av>=17",), without="M4A, WebM, WMA, AMR and films are not read"),
    Engine("sentencepiece", "sentencepiece", ("sentencepiece",)),
    Engine("jiwer", "jiwer", ("jiwer",)),
    Engine("numba", "numba", ("numba",)),
    Engine("click", "click", ("click>=8",)),
    Engine("espeakng-loader", "espeak", ("espeakng-loader",), without="no demo corpus can be made"),
)


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
PROGRAMS = {
    "java": ["java", "-version"],
    "nvidia-smi": ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"],
}
"""Commands whose answers describe the machine."""
ABOUT_MACHINE = ("torch", "gpu", "gemm", "frontend", "search")
"""Self-tests that are run whatever is installed, in this order."""
SHARE_TORCH = frozenset({"numba", "lhotse", "kaldifeat", "k2"})
"""Self-tests of packages that are run in the same process behind those."""
PATIENCE = 5
"""Factor on the time limit of a test that is repeated."""


def check_engine(
    engine: Engine, timeout: float = 60.0, passed: Mapping[str, ProcessResult] | None = None
) -> Finding:
    """Test one engine, unless it is among those that have passed already.

    One without an answer after `timeout` seconds gets `PATIENCE` times as long, and only the second
    silence counts: on a busy machine the first import of a package takes minutes.
    """
    version = _installed(engine.name)
    if not version:
        if engine.without:
            return Finding(engine, "absent", "", f"not installed: {engine.without}")
        return Finding(engine, "MISSING", "", "not installed")
    result = (passed or {}).get(engine.test) or self_test(engine.test, timeout)
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


def run_checks(engines: Sequence[Engine] = ENGINES, as_json: bool = False) -> bool:
    """Print the state of the machine and the engines to standard output.

    Engines are tested together, those that share torch in one process; what does not pass there is
    tested again, alone.

    Args:
      engines: what is tested.
      as_json: print one JSON object instead of lines.

    Returns:
      Whether all engines work that the recipes need. Java and a GPU are optional.
    """
    say = _nothing if as_json else partial(print, flush=True)
    say("Machine")
    with ThreadPoolExecutor() as pool:
        programs = {name: pool.submit(run_process, c, 20.0) for name, c in PROGRAMS.items()}
        tests = {engine.test for engine in engines if _installed(engine.name)}
        groups = [
            pool.submit(passed_together, group)
            for group in (
                [*ABOUT_MACHINE, *sorted(tests & SHARE_TORCH)],
                sorted(tests - SHARE_TORCH - {"torch"}),
            )
            if group
        ]
        about = _machine()
        for name, text in about:
            say(f"  {name:<11} {text}")
        passed = {name: result for group in groups for name, result in group.result().items()}
        outputs = {name: program.result() for name, program in programs.items()}
        more = [*_optional(passed, outputs), *_blas(passed)]
        for name, text in more:
            say(f"  {name:<11} {text}")
        say("Packages")
        findings = []
        for finding in pool.map(partial(check_engine, passed=passed), engines):
            findings.append(finding)
            label = f"{finding.engine.name} {finding.version}".strip()
            say(f"  {finding.status:<8} {label:<24} {finding.text}")
            if finding.fatal:
                say(f"           to repair it: {remedy(finding)}")
    fatal = [finding.engine.name for finding in findings if finding.fatal]
    if as_json:
        print(json.dumps(_plain(dict([*about, *more]), findings), indent=1))
        return not fatal
    if fatal:
        say(f"{len(fatal)} of {len(engines)} packages do not work: {', '.join(fatal)}.")
        target = "setup-reference" if REFERENCE else "setup"
        say(f"`make -B {target}` in the project's folder installs what is missing.")
        return False
    say("All packages that the recipes need here work.")
    return True


def _nothing(*_: object) -> None:
    """Print nothing."""


def _plain(about: Mapping[str, str], findings: Sequence[Finding]) -> dict[str, object]:
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
    works = not any(finding.fatal for finding in findings)
    return {"works": works, "machine": about, "packages": packages}


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


def _optional(
    passed: Mapping[str, ProcessResult], outputs: Mapping[str, ProcessResult]
) -> list[tuple[str, str]]:
    java, cards = outputs["java"], outputs["nvidia-smi"]
    quoted = re.search(r'"([^"]+)"', java.output) if java.works else None
    card = f" (nvidia-smi sees {cards.text})" if cards.works else ""
    gpu, features, found = (
        passed.get(name) or _patiently(name) for name in ("gpu", "frontend", "search")
    )
    hint = "; torch 1.13.1 has no code for Hopper and later, torch 2 has" if REFERENCE else ""
    return [
        ("Java", quoted[1] if quoted else "none (only the Spark executor needs it)"),
        ("features", features.text if features.works else f"fail: {features.text}"),
        ("search", found.text if found.works else f"BROKEN: {found.text}"),
        ("GPU", (gpu.text if gpu.works else f"fails: {gpu.text}{hint}") + card),
    ]


def _patiently(name: str) -> ProcessResult:
    """Run a self-test alone, a second time if it is slow: after an installation it compiles."""
    result = self_test(name)
    return self_test(name, PATIENCE * 60.0) if result.timed_out else result


def _blas(passed: Mapping[str, ProcessResult]) -> list[tuple[str, str]]:
    now = passed.get("gemm") or self_test("gemm")
    if not now.works:
        return [("BLAS", f"cannot be measured: {now.text}")]
    text = f"{now.text} GFLOP/s per core"
    setting = os.environ.get(BLAS_VARIABLE)
    if setting and REFERENCE:  # the library of later versions of torch ignores it
        unset: dict[str, Any] = {BLAS_VARIABLE: ""}
        without = self_test("gemm", **unset)
        text += f" with {BLAS_VARIABLE}={setting}, {without.text} without it"
    return [("BLAS", text)]
