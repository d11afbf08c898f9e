"""`setup/test-dist`, with Pythons that are shell scripts."""

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "setup" / "test-dist"
PYTHON = """#!/bin/sh
# A Python {version} whose environments have a pip that writes down what it is told, and a toolkit.
case "$1 $2" in
  "-m venv")
    mkdir -p "$3/bin" && cp "$0" "$3/bin/python"
    cp "$(dirname "$0")/toolkit{version}" "$3/bin/toolkit" ;;
  "-m pip") echo "$CC $*" >>{log} ;;
  *sys.executable*) echo "{version} $0" ;;
  *) echo {version} ;;
esac
"""
TOOLKIT = """#!/bin/sh
# A toolkit that hears "{words}".
echo "$1" >>{log}
case "$1" in
  --version) echo toolkit ;;
  doctor) echo '{{}}'; exit {doctor} ;;
  transcribe) ls -A; echo "first {words}" ;;
  score) cat; echo %WER ;;
esac
"""
UV = """#!/bin/sh
# A uv that makes environments as the Python does that is asked for.
case "$1" in
  venv) for folder; do :; done; "$4" -m venv "$folder" ;;
  pip) echo "$CC uv $*" >>{log} ;;
esac
"""


@pytest.fixture
def run(tmp_path):
    """Runs the script with Pythons from 3.90 on; each fake toolkit prints its words."""
    log = tmp_path / "log"

    def script(*words, doctor=0, extra=()):
        programs = tmp_path / "bin"
        programs.mkdir()
        versions = [f"3.{90 + n}" for n in range(len(words))]
        (programs / "uv").write_text(UV.format(log=log))
        (programs / "uv").chmod(0o755)
        for version, transcript in zip(versions, words, strict=True):
            for name, text in (
                (f"python{version}", PYTHON.format(version=version, log=log)),
                (f"toolkit{version}", TOOLKIT.format(words=transcript, doctor=doctor, log=log)),
            ):
                (programs / name).write_text(text)
                (programs / name).chmod(0o755)
        for name in ("bundle", "audio", "temporary"):
            (tmp_path / name).mkdir()
        (tmp_path / "some.whl").touch()
        environment = {
            "PATH": f"{programs}:/usr/bin:/bin",
            "HOME": str(tmp_path),
            "TMPDIR": str(tmp_path / "temporary"),
            "BUNDLE": str(tmp_path / "bundle"),
            "AUDIO": str(tmp_path / "audio"),
        }
        command = [str(SCRIPT), str(tmp_path / "some.whl"), *versions, *extra]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert not list((tmp_path / "temporary").iterdir())
        done.log = log.read_text().splitlines() if log.exists() else []
        return done

    return script


def test_each_python_installs_wheels_alone_and_says_the_words(run):
    done = run("YES NO", "YES NO", extra=("3.99",))
    assert (done.returncode, done.stderr) == (0, "")
    assert "== Python 3.99 is not found" in done.stdout
    assert done.stdout.count("first YES NO\n") == 6  # what score was given, and the words again
    assert done.stdout.endswith("The wheel works in all 2 Pythons, with the same words.\n")
    installs = [line for line in done.log if line.startswith("false -m pip install")]
    assert len(installs) == 4
    (with_uv,) = (line for line in done.log if line.startswith("false uv pip install"))
    for upgrade, install in (installs[:2], installs[2:]):
        assert upgrade.endswith("--upgrade pip")
        assert "--only-binary :all:" in install
        assert install.endswith("some.whl")
    assert with_uv.endswith("--only-binary :all: " + install.split()[-1])
    used = [line for line in done.log if " pip " not in line]
    assert [*map(used.count, ("--version", "doctor", "transcribe", "score"))] == [3] * 4


def test_other_words_and_failures_end_it(run):
    done = run("YES NO", "YES")
    assert done.returncode == 1
    assert done.stderr.endswith("these are not the words of the first environment\n")


def test_a_doctor_that_finds_faults_ends_it(run):
    done = run("YES", doctor=1)
    assert done.returncode == 1
    assert "transcribe" not in done.log


def test_without_any_python_it_says_how_to_get_one(run):
    done = run(extra=("3.99",))
    assert done.returncode == 1
    assert "No Python 3.99 was found" in done.stderr
