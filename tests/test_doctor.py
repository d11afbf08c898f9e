import json
import sys
from dataclasses import replace

import pytest

from toolkit import doctor
from toolkit.doctor import (
    ENGINES,
    K2_WHEEL,
    SELF_TESTS,
    Engine,
    Finding,
    check_engine,
    remedy,
    run_checks,
    run_process,
    run_self_test,
)
from toolkit.engines import frontend_engine
from toolkit.environment import project_root

JIWER = Engine("jiwer", ("jiwer",))
ABSENT = Engine("no-such-distribution", ("no-such-distribution==1",))


@pytest.fixture
def answers(monkeypatch):
    """Fake answers of self-tests by name; self-tests of packages without an answer run."""
    planted = dict.fromkeys(("features", "search", "gpu", "gemm"), (True, "planted"))

    def self_test(name):
        return planted[name] if name in planted else run_self_test(name)

    monkeypatch.setattr(doctor, "run_self_test", self_test)
    return planted


@pytest.fixture
def about_machine(answers, capsys):
    """Return the doctor's report on the machine as {name: text}."""

    def ask():
        run_checks([], as_json=True)
        return json.loads(capsys.readouterr().out)["machine"]

    return ask


@pytest.mark.parametrize(
    ("code", "works", "text"),
    [
        ("print('noise'); print('fine')", True, "fine"),
        ("import sys; print('on stderr', file=sys.stderr)", True, "on stderr"),
        ("import os; os.kill(os.getpid(), 11)", False, "killed by SIGSEGV"),
        ("import time; time.sleep(60)", False, "no answer in 0.5 s: it hangs, or the machine is"),
        ("raise RuntimeError('wrong result: 3')", False, "RuntimeError: wrong result: 3"),
        ("raise SystemExit(7)", False, "exit status 7"),
    ],
)
def test_crash_hang_and_failure_are_results(code, works, text):
    timeout = 0.5 if "sleep" in code else 60
    result = run_process([sys.executable, "-c", code], timeout)
    assert result[0] == works
    assert result[1].startswith(text)


def test_a_missing_program_is_a_result():
    assert not run_process(["/no/such/program"], 5)[0]


def test_every_engine_has_a_test_and_the_projects_requirement():
    project = (project_root() / "pyproject.toml").read_text()
    for engine in ENGINES:
        assert engine.name in SELF_TESTS
        for requirement in engine.requirements:
            assert f'"{requirement}' in project, requirement


@pytest.mark.long
@pytest.mark.parametrize("name", [*SELF_TESTS])
def test_self_test_passes_here(name):
    if name in {engine.name for engine in ENGINES}:
        pytest.importorskip(name.replace("-", "_"))
    works, text = run_self_test(name)
    assert works, text


def test_a_crash_of_an_engine_is_its_result(monkeypatch, tmp_path):
    (tmp_path / "jiwer.py").write_text("import os; os.kill(os.getpid(), 11)")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{project_root()}")
    finding = check_engine(JIWER)
    assert (finding.status, finding.text, finding.fatal) == ("BROKEN", "killed by SIGSEGV", True)


def test_healthy_machine(answers, capsys):
    assert run_checks([JIWER, Engine("click", ("click",))])
    output = capsys.readouterr().out
    assert "ok       jiwer" in output
    assert "ok       click" in output
    assert "processor" in output
    assert "All packages required by the recipes" in output


def test_missing_engine_is_named_with_its_remedy_and_others_are_still_tested(answers, capsys):
    answers["jiwer"] = True, "word error rate"
    assert not run_checks([ABSENT, JIWER])
    output = capsys.readouterr().out
    assert "MISSING  no-such-distribution" in output
    assert f"{sys.executable} -m pip install 'no-such-distribution==1'" in output
    assert "ok       jiwer" in output
    assert "1 of 2 packages do not work: no-such-distribution." in output


def test_broken_engine_is_reinstalled(answers):
    answers["jiwer"] = False, "killed by SIGILL"
    finding = check_engine(JIWER)
    assert (finding.status, finding.text, finding.fatal) == ("BROKEN", "killed by SIGILL", True)
    assert f"--force-reinstall --no-deps 'jiwer=={finding.version}'" in remedy(finding)


def test_a_build_of_torch_is_reinstalled_in_its_version():
    (torch,) = (engine for engine in ENGINES if engine.name == "torch")
    assert remedy(Finding(torch, "BROKEN", "2.15.0+cpu", "")).endswith("--no-deps 'torch==2.15.0'")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("k2", "not installed: the toolkit's own search is used"),
        ("kaldifeat", "not installed: torch computes the features"),
    ],
)
def test_without_an_optional_engine_nothing_is_wrong(answers, capsys, name, text):
    (engine,) = (engine for engine in ENGINES if engine.name == name)
    assert run_checks([replace(engine, name="no-such-distribution")])
    assert text in capsys.readouterr().out


@pytest.mark.parametrize(("works", "text"), [(True, "searched (k2)"), (False, "fails: no k2")])
def test_the_engine_of_the_search_is_shown(about_machine, answers, works, text):
    answers["search"] = works, text.removeprefix("fails: ")
    assert about_machine()["search"] == text


def test_k2_of_another_build_is_not_replaced_by_that_of_python_310():
    (k2,) = (engine for engine in ENGINES if engine.name == "k2")
    command = remedy(Finding(k2, "BROKEN", "1.24.4.dev20260626+cpu.torch2.12.1", ""))
    assert "docs/install.md" in command
    assert "1.23.4" not in command


@pytest.mark.long
@pytest.mark.parametrize("variable", ["torch", "", "sphinx"])
def test_the_engine_of_the_features_is_shown(monkeypatch, about_machine, answers, variable):
    monkeypatch.setenv("TOOLKIT_FRONTEND", variable)
    del answers["features"]
    description = about_machine()["features"]
    if variable == "sphinx":
        assert description.startswith("fails: ")
        assert "TOOLKIT_FRONTEND is 'sphinx'" in description
    else:
        assert description.startswith(f"computed by {variable or frontend_engine()} ")


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


def test_as_json(answers, capsys):
    answers["jiwer"] = True, "word error rate"
    assert not run_checks([ABSENT, JIWER], as_json=True)
    printed = json.loads(capsys.readouterr().out)
    assert printed["works"] is False
    assert printed["machine"]["BLAS"] == "planted"
    assert "processor" in printed["machine"]
    missing, good = printed["packages"]
    assert (missing["status"], missing["version"]) == ("missing", "")
    assert missing["remedy"].endswith("'no-such-distribution==1'")
    assert (good["name"], good["status"], good["remedy"]) == ("jiwer", "ok", None)
