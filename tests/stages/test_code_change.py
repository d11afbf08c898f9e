"""Code changes during an interrupted stage are noticed, reported and recorded."""

import json
import signal
import subprocess
import sys
from importlib import metadata

import pytest

from toolkit import environment
from toolkit.stages import marker
from toolkit.stages.marker import code_version


class Repository:
    """The sample recipe in a git repository; every command runs as in a new process."""

    def __init__(self, sample):
        self.sample = sample
        self.git("init")
        (sample.folder / ".gitignore").write_text("exp/\noutput.txt\n__pycache__/\n")
        self.first = self.commit("first")

    def git(self, *arguments):
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        command = ["git", *who, "-C", self.sample.folder, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def edit(self, text="# edited"):
        with open(self.sample.script, "a") as file:
            file.write(f"\n{text}\n")

    def commit(self, message="change"):
        self.git("add", ".")
        self.git("commit", "-m", message)
        return self.git("rev-parse", "HEAD")

    def main(self, *arguments, **options):
        code_version.cache_clear()  # remembered for a process's life
        return self.sample.main(*arguments, **options)

    def kill(self, *arguments):
        result = self.main(*arguments, env={"FAULT": "3:middle:kill"})
        assert result.status == -signal.SIGKILL, result.output

    @property
    def marker(self):
        return json.loads((self.sample.exp / "stages" / "03.json").read_text())

    def commits(self):
        """Return the commits of the attempts in the killed stage's marker."""
        return [attempt["code"]["commit"] for attempt in self.marker["attempts"]]

    def inode(self, folder="model"):
        return (self.sample.exp / folder / "0.json").stat().st_ino


@pytest.fixture
def repository(sample):
    return Repository(sample)


def commit_change(old, new):
    return f"commit {old[:12]} -> {new[:12]}"


@pytest.fixture
def upgraded(repository):
    """A stage was killed half-way and the code upgraded."""
    repository.kill()
    repository.before = repository.inode(".partial/03/model")
    repository.edit()
    repository.second = repository.commit()
    return repository


def test_a_stage_begun_by_another_commit_is_not_continued(upgraded):
    result = upgraded.main()
    assert result.status == 1
    assert "stage 3 was begun with other code or packages: " in result.output
    assert commit_change(upgraded.first, upgraded.second) in result.output
    assert "--accept-code-change" in result.output
    assert "--force 3" in result.output
    assert "Traceback" not in result.output
    assert not (upgraded.sample.exp / "stages" / "03.json").exists()
    assert upgraded.inode(".partial/03/model") == upgraded.before
    (step,) = [line for line in upgraded.main("--dry-run").output.splitlines() if " 3 " in line]
    assert step.startswith("  3 Train the model: would stop: stage 3 was begun with other code")
    upgraded.git("checkout", upgraded.first)
    assert upgraded.main().status == 0
    assert upgraded.inode() == upgraded.before
    assert upgraded.commits() == [upgraded.first] * 2


def test_an_accepted_stage_continues_and_its_marker_names_both_commits(upgraded, finished):
    result = upgraded.main("--accept-code-change")
    assert result.status == 0, result.output
    change = commit_change(upgraded.first, upgraded.second)
    assert f"resuming the interrupted attempt, with other code: {change}" in result.output
    assert upgraded.inode() == upgraded.before
    assert upgraded.sample.outputs() == finished
    assert upgraded.commits() == [upgraded.first, upgraded.second]
    for attempt in upgraded.marker["attempts"]:
        assert attempt["started"]
        assert attempt["code"]["versions"].keys() >= {"python", "toolkit", "torch", "numpy", "k2"}
        assert "torch_threads" in attempt["numeric"]


def test_an_accepted_code_change_need_not_be_accepted_again(upgraded):
    upgraded.main("--accept-code-change", env={"FAULT": "3:middle:kill"})
    assert upgraded.main().status == 0
    assert upgraded.commits() == [upgraded.first, upgraded.second, upgraded.second]


def test_a_forced_stage_starts_over_and_its_marker_names_one_commit(upgraded, finished):
    result = upgraded.main("--force", 3)
    assert result.status == 0, result.output
    assert "starts over: --force 3" in result.output
    assert upgraded.inode() != upgraded.before
    assert upgraded.sample.outputs() == finished
    assert upgraded.commits() == [upgraded.second]


def test_other_settings_start_a_stage_over_despite_new_code(upgraded):
    assert upgraded.main("--set", "train.rate=0.25").status == 0
    assert upgraded.commits() == [upgraded.second]


def test_a_forced_attempt_is_forced_again_by_other_code(repository):
    repository.kill("--force", 3)
    inode = repository.inode(".partial/03/model")
    repository.edit()
    second = repository.commit()
    repository.kill("--force", 3)
    assert repository.inode(".partial/03/model") != inode
    inode = repository.inode(".partial/03/model")
    repository.edit()
    third = repository.commit()
    assert repository.main("--force", 3, "--accept-code-change").status == 0
    assert repository.inode() == inode
    assert repository.commits() == [second, third]


def test_further_edits_of_a_dirty_tree_are_noticed(repository):
    repository.edit("# one")
    repository.kill()
    script = repository.sample.script.read_text()
    repository.edit("# two")
    result = repository.main()
    assert result.status == 1
    commit = repository.first[:12]
    assert f"commit {commit} with changes " in result.output
    assert f" -> {commit} with changes " in result.output
    repository.sample.script.write_text(script)
    assert repository.main().status == 0
    codes = [attempt["code"] for attempt in repository.marker["attempts"]]
    assert codes[0] == codes[1]
    assert (codes[0]["dirty"], len(codes[0]["diff"])) == (True, 32)


def test_a_stage_does_not_continue_with_other_packages_and_names_them(repository, monkeypatch):
    repository.kill()
    torch = metadata.version("torch")
    versions = environment.result_versions() | {"torch": "9.9"}
    monkeypatch.setattr(marker, "result_versions", lambda: versions)
    result = repository.main()
    assert result.status == 1
    assert f"packages: torch {torch} -> 9.9. To" in result.output
    assert repository.main("--accept-code-change").status == 0
    versions = [a["code"]["versions"]["torch"] for a in repository.marker["attempts"]]
    assert versions == [torch, "9.9"]


def test_the_list_has_a_column_only_where_code_differs(repository):
    assert repository.main().status == 0
    none = "all finished stages were run with the current code and packages\n"
    assert repository.main("--stale-code").output == none
    head = repository.main("--list").output.splitlines()[0]
    assert head.split() == ["stage", "title", "state", "time", "result"]
    repository.edit()
    second = repository.commit()
    assert repository.main("--force", 3).status == 0
    head, first, _, third, _ = repository.main("--list").output.splitlines()
    assert head.split() == ["stage", "title", "state", "time", "code", "result"]
    old = f"commit {repository.first[:12]}"
    assert first.split("done")[1].split()[2:] == [*old.split(), "utterances", "2"]
    assert old not in third
    change = commit_change(repository.first, second)
    assert repository.main("--stale-code").output.splitlines() == [
        f"  1 Prepare the corpus (done): {change}",
        f"  2 Build the lexicon (done): {change}",
        f"  5 Decode the test split (done): {change}",
    ]


def test_a_partial_stage_of_other_code_is_listed(upgraded):
    listed = upgraded.main("--stale-code").output
    assert (
        f"  3 Train the model (partial): {commit_change(upgraded.first, upgraded.second)}" in listed
    )


@pytest.fixture
def of_k2(sample):
    """A run whose markers say that k2 computed the first two stages."""
    assert sample.main("--stop-stage", "2").status == 0
    for number in (1, 2):
        set_engine(sample, number, "k2")
    return sample


def set_engine(sample, number, name):
    path = sample.exp / "stages" / f"0{number}.json"
    marker = json.loads(path.read_text())
    marker["attempts"][-1]["code"]["versions"]["search"] = name
    path.write_text(json.dumps(marker))


def test_engines_are_not_mixed_in_a_run_directory(of_k2):
    """Lattices and features of different engines must not be mixed."""
    result = of_k2.main()
    assert result.status == 1
    assert "was run with k2 for the search, but this run uses native" in result.output
    assert "Set TOOLKIT_SEARCH=k2" in result.output
    assert not (of_k2.exp / "stages" / "03.json").exists()
    assert of_k2.main("--accept-code-change").status == 0


def test_engines_may_differ_when_nothing_runs_or_everything_does(of_k2):
    assert of_k2.main("--stop-stage", "2").status == 0  # done, skipped
    assert of_k2.main("--force", "1", "--force", "2", "--stop-stage", "2").status == 0
    assert of_k2.main().status == 0


def test_a_missing_engine_is_reported_at_once(sample, monkeypatch):
    monkeypatch.setitem(sys.modules, "k2", None)
    result = sample.main(env={"TOOLKIT_SEARCH": "k2"}, setup=code_version.cache_clear)
    assert result.status == 1
    assert "TOOLKIT_SEARCH is 'k2', which is not installed" in result.output
    assert not (sample.exp / "stages" / "01.json").exists()
