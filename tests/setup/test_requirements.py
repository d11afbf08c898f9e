"""Requirements of pyproject.toml and of the lock files."""

import json
import re
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import pytest

packaging = pytest.importorskip("packaging")
from packaging.requirements import Requirement  # noqa: E402
from packaging.version import Version  # noqa: E402

PROJECT = Path(__file__).resolve().parents[2]
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
SYSTEMS = (("Linux", "x86_64"), ("Linux", "aarch64"), ("Darwin", "arm64"), ("Darwin", "x86_64"))
REFERENCE = ("3.10", "Linux", "x86_64")


def project() -> dict:
    """Return the string arrays of the table `project`; Python 3.10 has no tomllib."""
    text = (PROJECT / "pyproject.toml").read_text(encoding="utf-8")
    arrays = {}
    for name, body in re.findall(r"^([\w-]+) = \[(.*?)\](?=\n|  #)", text, re.S | re.M):
        body = re.sub(r"#[^\n]*", "", body)
        arrays[name] = re.findall(r'"([^"]+)"', body)
    return arrays


ARRAYS = project()


def applies(requirement: Requirement, python: str, system: str, machine: str) -> bool:
    """Whether a requirement applies to this Python, system and machine."""
    place = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "platform_system": system,
        "platform_machine": machine,
        "sys_platform": system.lower(),
    }
    return requirement.marker is None or requirement.marker.evaluate(place)


@pytest.mark.parametrize("extra", ["k2", "reference"])
def test_packages_of_the_reference_environment_are_for_no_other_python(extra):
    requirements = [Requirement(r) for r in ARRAYS[extra] if "asr-recipe" not in r]
    assert requirements
    for requirement in requirements:
        for python in PYTHONS:
            for place in SYSTEMS:
                expected = (python, *place) == REFERENCE
                assert applies(requirement, python, *place) is expected, (requirement, python)


def test_k2_comes_with_the_extra_alone_and_in_its_one_version():
    for name, requirements in ARRAYS.items():
        for requirement in requirements:
            if requirement.startswith("k2"):
                assert name == "k2"
                assert str(Requirement(requirement).specifier) == "==1.23.4"
    names = {Requirement(requirement).name for requirement in ARRAYS["dependencies"]}
    assert not names & {"k2", "kaldilm", "kaldifeat", "torchaudio"}


def locked(name: str) -> dict[str, str]:
    lines = (PROJECT / "setup" / name).read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


@pytest.mark.parametrize("python", PYTHONS[:-1])
def test_lock_files_satisfy_the_requirements(python):
    versions = {name.lower(): v for name, v in locked(f"python{python}.lock").items()}
    for text in (*ARRAYS["dependencies"], *ARRAYS["recipes"]):
        requirement = Requirement(text)
        pinned = versions[requirement.name.lower()]
        assert requirement.specifier.contains(Version(pinned)), (text, pinned)
    assert not versions.keys() & {"k2", "kaldilm", "kaldifeat", "torchaudio"}


def test_the_lock_of_the_reference_environment_fits_k2():
    versions = locked("reference.lock")
    for text in ARRAYS["k2"]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(versions[requirement.name]), text


@pytest.mark.parametrize(
    "name", ["pip.txt", "k2.txt", "kaldifeat/tools.txt", "kaldifeat/kaldifeat.txt"]
)
def test_packages_outside_the_lock_have_a_version_and_a_hash(name):
    lines = (PROJECT / "setup" / name).read_text(encoding="utf-8").splitlines()
    packages = [line for line in lines if not line.startswith("#")]
    assert packages
    for line in packages:
        assert re.fullmatch(r"[\w-]+==[\d.]+( --hash=sha256:[0-9a-f]{64})+", line), line


def test_no_package_of_the_reference_environment_comes_without_lock_or_hash():
    text = (PROJECT / "Makefile").read_text(encoding="utf-8")
    text += (PROJECT / "setup" / "kaldifeat" / "install.sh").read_text(encoding="utf-8")
    commands = [line for line in text.splitlines() if "pip install" in line]
    installs = [line for line in commands if "reference" in line or "$here" in line]
    assert len(installs) == 5
    for command in installs:
        assert "--require-hashes" in command or "--constraint setup/reference.lock" in command


def platforms(*tags: str) -> list[str]:
    return [option for tag in tags for option in ("--platform", tag)]


LINUX = ("2_28", "2_27", "2_26", "2_24", "2_17")
WHEELS = {
    "x86_64": platforms(
        *(f"manylinux_{n}_x86_64" for n in (*LINUX, "2_12", "2_5")),
        *("manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"),
    ),
    "aarch64": platforms(*(f"manylinux_{n}_aarch64" for n in LINUX), "manylinux2014_aarch64"),
    "macos": platforms("macosx_14_0_arm64"),
}


def index_answers() -> bool:
    """Whether pip reaches an index of packages."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--retries", "0"]
    command += ["--timeout", "5", "--no-cache-dir", "iniconfig==2.0.0", "--dest"]
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run([*command, folder], capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def index():
    if not index_answers():
        pytest.skip("pip reaches no index")


@pytest.mark.long
@pytest.mark.parametrize(
    ("python", "system"), [("3.10", "aarch64"), ("3.12", "macos"), ("3.13", "x86_64")]
)
def test_every_required_package_has_a_wheel(index, tmp_path, python, system):
    if Version(version("pip")) < Version("24"):
        pytest.skip("this pip holds Requires-Python against its own Python")
    # Each requirement by itself, without what it needs: torch alone brings gigabytes.
    locks = locked(f"python{python}.lock")
    needed = {Requirement(text).name.lower() for text in ARRAYS["dependencies"]}
    pins = [f"{name}=={pinned}" for name, pinned in locks.items() if name.lower() in needed]
    assert len(pins) == len(needed)
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--quiet"]
    command += ["--ignore-installed", "--only-binary=:all:", "--python-version", python]
    command += [*WHEELS[system], "--target", str(tmp_path), "--report", str(tmp_path / "report")]
    done = subprocess.run([*command, *pins], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report").read_text())
    assert len(report["install"]) == len(needed)
