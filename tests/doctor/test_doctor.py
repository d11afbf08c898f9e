import json
import sys
from dataclasses import replace

import pytest

from toolkit.doctor import doctor, processes, selftests
from toolkit.doctor.doctor import (
    ENGINES,
    K2_WHEEL,
    Engine,
    Finding,
    ProcessResult,
    check_engine,
    remedy,
    run_checks,
    run_process,
)
from toolkit.engines import frontend_engine
from toolkit.environment import project_root

GOOD = Engine("pytest", "jiwer", ("pytest",))
ABSENT = Engine("no-such-distribution", "jiwer", ("no-such-distribution==1",))


@pytest.fixture
def quick(monkeypatch):
    """The self-tests of the machine, which take seconds, answer at once; those of packages run."""
    machine = dict.fromkeys(("gpu", "gemm", "frontend", "search"), ProcessResult(True, "quick"))

    def self_test(name, *arguments, **variables):
        return machine.get(name) or processes.self_test(name, *arguments, **variables)

    monkeypatch.setattr(doctor, "self_test", self_test)
    monkeypatch.setattr(doctor, "ABOUT_MACHINE", ())


@pytest.fixture
def about_machine(monkeypatch, capsys):
    """What the doctor says of the machine: about_machine(self_test) -> {name: text}."""

    def ask(self_test):
        monkeypatch.setattr(doctor, "self_test", self_test)
        monkeypatch.setattr(doctor, "ABOUT_MACHINE", ())
        run_checks([], as_json=True)
        return json.loads(capsys.readouterr().out)["machine"]

    return ask


@pytest.mark.parametrize(
    ("code", "works", "text"),
    [
        ("print('noise'); print('fine')", True, "fine"),
        ("import os; os.kill(os.getpid(), 11)", False, "killed by SIGSEGV"),
        ("import time; time.sleep(60)", False, "no answer in 0.5 s"),
        ("raise RuntimeError('wrong result: 3')", False, "RuntimeError: wrong result: 3"),
        ("raise SystemExit(7)", False, "exit status 7"),
    ],
)
def test_crash_hang_and_failure_are_results(code, works, text):
    timeout = 0.5 if "sleep" in code else 60
    result = run_process([sys.executable, "-c", code], timeout)
    assert (result.works, result.text) == (works, text)


def test_absent_program_is_a_result():
    assert not run_process(["/no/such/program"], 5).works


def test_every_engine_has_a_test_and_the_projects_requirement():
    project = (project_root() / "pyproject.toml").read_text()
    for engine in ENGINES:
        assert engine.test in selftests.TESTS
        for requirement in engine.requirements:
            assert f'"{requirement}' in project, requirement


@pytest.mark.long
@pytest.mark.parametrize(
    "name", ["torch", "lhotse", "soundfile", "av", "sentencepiece", "numba", "espeak"]
)
def test_self_test_passes_here(name):
    # Those of jiwer and click run in the test below; each is a process of a second.
    pytest.importorskip({"espeak": "espeakng_loader"}.get(name, name))
    assert doctor.self_test(name).works


@pytest.mark.parametrize("name", ["k2", "kaldifeat"])
def test_self_test_of_the_reference_environment_passes_here(name):
    pytest.importorskip(name)
    assert doctor.self_test(name).works


@pytest.mark.parametrize("name", ["frontend", "search"])
def test_the_engines_in_use_pass_here(name):
    assert doctor.self_test(name).works


def test_healthy_machine(quick, capsys):
    assert run_checks([GOOD, Engine("click", "click", ("click",))])
    shown = capsys.readouterr().out
    assert "ok       pytest" in shown
    assert "processor" in shown
    assert "All packages that the recipes need" in shown


def test_missing_engine_is_named_with_its_remedy_and_others_are_still_tested(quick, capsys):
    assert not run_checks([ABSENT, GOOD])
    shown = capsys.readouterr().out
    assert "MISSING  no-such-distribution" in shown
    assert f"{sys.executable} -m pip install 'no-such-distribution==1'" in shown
    assert "ok       pytest" in shown
    assert "1 of 2 packages do not work: no-such-distribution." in shown


def test_broken_engine_is_reinstalled(monkeypatch):
    monkeypatch.setattr(doctor, "self_test", lambda *_: ProcessResult(False, "killed by SIGILL"))
    finding = check_engine(GOOD)
    assert (finding.status, finding.text, finding.fatal) == ("BROKEN", "killed by SIGILL", True)
    assert f"--force-reinstall --no-deps 'pytest=={pytest.__version__}'" in remedy(finding)


def test_a_build_of_torch_is_reinstalled_in_its_version():
    (torch,) = (engine for engine in ENGINES if engine.name == "torch")
    assert remedy(Finding(torch, "BROKEN", "2.15.0+cpu", "")).endswith("--no-deps 'torch==2.15.0'")


def test_without_k2_nothing_is_wrong(quick, capsys):
    (k2,) = (engine for engine in ENGINES if engine.name == "k2")
    assert run_checks([replace(k2, name="no-such-distribution")])
    assert "not installed: the toolkit's own engine searches" in capsys.readouterr().out


@pytest.mark.parametrize(("works", "text"), [(True, "found it (k2)"), (False, "BROKEN: no k2")])
def test_the_engine_of_the_search_is_shown(about_machine, works, text):
    answer = ProcessResult(works, text.removeprefix("BROKEN: "))
    assert about_machine(lambda name, **_: answer)["search"] == text


def test_k2_of_another_build_is_not_replaced_by_that_of_python_310():
    (k2,) = (engine for engine in ENGINES if engine.name == "k2")
    told = remedy(Finding(k2, "BROKEN", "1.24.4.dev20260626+cpu.torch2.12.1", ""))
    assert "docs/install.md" in told
    assert "1.23.4" not in told


@pytest.mark.parametrize(("answers_at", "status"), [(1, "ok"), (2, "ok"), (3, "BROKEN")])
def test_a_slow_engine_is_not_a_broken_one(monkeypatch, answers_at, status):
    limits = []

    def self_test(name, timeout):
        limits.append(timeout)
        slow = len(limits) < answers_at
        return ProcessResult(not slow, f"no answer in {timeout:g} s" if slow else "fine", "", slow)

    monkeypatch.setattr(doctor, "self_test", self_test)
    finding = check_engine(GOOD, timeout=10)
    assert (finding.status, finding.fatal) == (status, status != "ok")
    assert limits == [10, 50][: len(limits)]
    if status == "BROKEN":
        assert finding.text == "no answer in 50 s: it hangs, or the machine is too busy to tell"


def test_nothing_is_wrong_where_torch_computes_the_features():
    (engine,) = (engine for engine in ENGINES if engine.name == "kaldifeat")
    finding = check_engine(replace(engine, name="no-such-distribution"))
    assert (finding.status, finding.fatal) == ("absent", False)
    assert finding.text == "not installed: torch computes the features"


@pytest.mark.long
@pytest.mark.parametrize("variable", ["torch", "", "sphinx"])
def test_the_engine_of_the_features_is_shown(monkeypatch, about_machine, variable):
    monkeypatch.setenv("TOOLKIT_FRONTEND", variable)
    shown = about_machine(
        lambda name, **_: (
            processes.self_test(name) if name == "frontend" else ProcessResult(False, "")
        )
    )["features"]
    if variable == "sphinx":
        assert shown.startswith("fail: ")
        assert "TOOLKIT_FRONTEND is 'sphinx'" in shown
    else:
        assert shown.startswith(f"computed by {variable or frontend_engine()} ")


def test_remedies_of_the_native_engines():
    engines = {engine.name: engine for engine in ENGINES}
    k2 = remedy(Finding(engines["k2"], "MISSING", "", ""))
    assert "'pip<24' && " in k2
    pinned = (project_root() / "setup" / "k2.txt").read_text()
    assert f"\n{K2_WHEEL}\n" in pinned
    assert K2_WHEEL in k2
    kaldifeat = remedy(Finding(engines["kaldifeat"], "BROKEN", "1.24", ""))
    script = project_root() / "setup" / "kaldifeat" / "install.sh"
    assert script.exists()
    assert f"pip uninstall -y kaldifeat; bash {script} {sys.executable}" in kaldifeat


def test_kaldifeat_is_built_from_a_checkout_where_the_package_alone_is_installed(
    monkeypatch, tmp_path
):
    (engine,) = (engine for engine in ENGINES if engine.name == "kaldifeat")
    monkeypatch.setattr(doctor, "project_root", lambda: tmp_path)
    command = remedy(Finding(engine, "MISSING", "", ""))
    assert (
        command == f"in a checkout of the project: bash setup/kaldifeat/install.sh {sys.executable}"
    )


def test_blas_speed_is_compared_with_and_without_the_setting(monkeypatch, about_machine):
    def measure(name, **variables):
        return ProcessResult(True, "40.0" if variables == {"MKL_DEBUG_CPU_TYPE": ""} else "105.0")

    monkeypatch.setenv("MKL_DEBUG_CPU_TYPE", "5")
    monkeypatch.setattr(doctor, "REFERENCE", True)
    text = about_machine(measure)["BLAS"]
    assert text == "105.0 GFLOP/s per core with MKL_DEBUG_CPU_TYPE=5, 40.0 without it"
    monkeypatch.setattr(doctor, "REFERENCE", False)
    assert about_machine(measure)["BLAS"] == "105.0 GFLOP/s per core"
    monkeypatch.setattr(doctor, "REFERENCE", True)
    monkeypatch.delenv("MKL_DEBUG_CPU_TYPE")
    assert about_machine(measure)["BLAS"] == "105.0 GFLOP/s per core"


def test_tests_that_pass_together_are_not_repeated(monkeypatch):
    passed = doctor.passed_together(["jiwer", "click"])
    assert passed == {
        "jiwer": ProcessResult(True, "word error rate"),
        "click": ProcessResult(True, "command"),
    }
    monkeypatch.setattr(doctor, "self_test", lambda *_: pytest.fail("tested again"))
    assert check_engine(GOOD, passed=passed).status == "ok"


@pytest.mark.parametrize("end", ["raise ValueError('no')", "import os; os.kill(os.getpid(), 11)"])
def test_what_fails_or_crashes_among_others_is_left_to_a_process_of_its_own(
    monkeypatch, end, tmp_path
):
    (tmp_path / "jiwer.py").write_text(end)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    passed = doctor.passed_together(["click", "jiwer", "sentencepiece"])
    assert passed.keys() == ({"click", "sentencepiece"} if "raise" in end else {"click"})


def test_as_json(quick, capsys):
    assert not run_checks([ABSENT, GOOD], as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["works"] is False
    assert "processor" in found["machine"]
    missing, good = found["packages"]
    assert (missing["status"], missing["version"]) == ("missing", "")
    assert missing["remedy"].endswith("'no-such-distribution==1'")
    assert (good["name"], good["status"], good["remedy"]) == ("pytest", "ok", None)
