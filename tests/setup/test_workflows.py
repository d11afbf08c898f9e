"""The workflows and pre-commit hooks parse and call existing targets and files."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

PROJECT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((PROJECT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(
    re.findall(r"^([a-z][\w-]*):", (PROJECT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
)


def load(path: Path) -> dict:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def steps(workflow: dict) -> list[tuple[dict, dict]]:
    """Every step with the job that it belongs to."""
    return [(job, step) for job in workflow["jobs"].values() for step in job["steps"]]


def test_there_is_one_workflow_each_for_tests_wheels_and_docs():
    assert [path.stem for path in WORKFLOWS] == ["docs", "tests", "wheels"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_targets_of_make_exist(path):
    runs = [step.get("run", "") for _, step in steps(load(path))]
    called = {target for run in runs for target in re.findall(r"^make ([\w-]+)", run, re.MULTILINE)}
    assert called <= TARGETS
    assert called


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_jobs_may_only_read_and_end(path):
    workflow = load(path)
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert 0 < job["timeout-minutes"] <= 360
        assert job["steps"][0]["uses"].startswith("actions/checkout@")
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step), step


def test_every_python_with_a_lock_is_tested_and_linted():
    locked = {path.stem.removeprefix("python") for path in (PROJECT / "setup").glob("python*.lock")}
    for name in ("tests", "wheels"):
        workflow = load(PROJECT / ".github" / "workflows" / f"{name}.yml")
        (matrix,) = (
            job["strategy"]["matrix"] for job in workflow["jobs"].values() if "strategy" in job
        )
        assert set(matrix["python"]) == locked
    runs = [step.get("run") for _, step in steps(load(PROJECT / ".github/workflows/tests.yml"))]
    script = (PROJECT / ".ci" / "run").read_text(encoding="utf-8")
    called = set(re.findall(r"\bstep (make [\w-]+)", script))
    assert called > {"make setup", "make setup-reference", "make docs"}
    for line in called - {"make setup", "make docs"}:
        assert line.replace("test-engines", "test-reference") in runs, line  # a part of it
    runs = [step.get("run") for _, step in steps(load(PROJECT / ".github/workflows/docs.yml"))]
    assert "make docs" in runs


def test_hooks_run_existing_files_in_the_projects_environment():
    (repository,) = load(PROJECT / ".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    for hook in repository["hooks"]:
        program, *words = shlex.split(hook["entry"])
        assert (hook["language"], program) == ("system", ".venv/bin/python")
        for word in words:
            if "/" in word:
                assert (PROJECT / word).exists(), word
        if "files" in hook:
            pattern = re.compile(hook["files"])
            paths = ("Dockerfile", "docs/README.md", "toolkit/cli.py", "setup/dist.py")
            assert any(pattern.search(name) for name in paths)
