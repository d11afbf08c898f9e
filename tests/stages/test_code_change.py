"""Code that changes while a stage is half done: noticed, told, and recorded in the marker."""

import json
import signal
import subprocess
import sys

import pytest

from toolkit.stages import code
from toolkit.stages.code import present_code
from toolkit.stages.stage_code import present_sources


class Repository:
    """The sample recipe in a git repository, driven as by new processes."""

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
        present_code.cache_clear()  # remembered for a process's life
        present_sources.cache_clear()
        return self.sample.main(*arguments, **options)

    def kill(self, *arguments):
        result = self.main(*arguments, env={"FAULT": "3:middle:kill"})
        assert result.status == -signal.SIGKILL, result.output

    @property
    def record(self):
        return self.sample.exp / ".partial" / "03.json"

    @property
    def marker(self):
        return json.loads((self.sample.exp / "stages" / "03.json").read_text())

    def commits(self):
        """The commits of the attempts that the marker of the killed stage names."""
        attempts = self.marker["attempts"]
        return [a if a == "unknown" else a["code"]["git"]["commit"] for a in attempts]

    def inode(self, folder="model"):
        return (self.sample.exp / folder / "0.json").stat().st_ino


@pytest.fixture
def repository(sample):
    return Repository(sample)


def short(old, new):
    return f"commit {old[:12]} -> {new[:12]}"


@pytest.fixture
def upgraded(repository):
    """A stage was killed half-way and the code upgraded."""
    repository.kill()
    repository.before = repository.inode(".partial/03/model")
    repository.edit()
    repository.second = repository.commit()
    return repository


def test_what_was_begun_by_another_commit_is_not_continued(upgraded):
    result = upgraded.main()
    assert result.status == 1
    assert "stage 3 was begun with other code or packages: " in result.output
    assert short(upgraded.first, upgraded.second) in result.output
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


def test_accepted_it_is_continued_and_the_marker_names_both(upgraded, finished):
    result = upgraded.main("--accept-code-change")
    assert result.status == 0, result.output
    change = short(upgraded.first, upgraded.second)
    assert f"continues where the last attempt stopped, with other code: {change}" in result.output
    assert upgraded.inode() == upgraded.before
    assert upgraded.sample.outputs() == finished
    assert upgraded.commits() == [upgraded.first, upgraded.second]
    assert upgraded.marker["git"]["commit"] == upgraded.second
    for attempt in upgraded.marker["attempts"]:
        assert attempt["started"]
        assert attempt["code"]["versions"] == upgraded.marker["versions"]
        assert attempt["code"]["versions"].keys() >= {"python", "toolkit", "torch", "numpy", "k2"}
        assert "torch_threads" in attempt["numeric"]


def test_what_was_accepted_once_need_not_be_again(upgraded):
    upgraded.main("--accept-code-change", env={"FAULT": "3:middle:kill"})
    assert upgraded.main().status == 0
    assert upgraded.commits() == [upgraded.first, upgraded.second, upgraded.second]


def test_forced_it_starts_over_and_the_marker_names_one(upgraded, finished):
    result = upgraded.main("--force", 3)
    assert result.status == 0, result.output
    assert "starts over: --force 3" in result.output
    assert upgraded.inode() != upgraded.before
    assert upgraded.sample.outputs() == finished
    assert upgraded.commits() == [upgraded.second]


def test_other_settings_start_it_over_anyway(upgraded):
    assert upgraded.main("--set", "train.rate=0.25").status == 0
    assert upgraded.commits() == [upgraded.second]


def test_a_forced_attempt_is_forced_again_by_other_code(repository):
    repository.kill("--force", 3)
    before = repository.inode(".partial/03/model")
    repository.edit()
    second = repository.commit()
    repository.kill("--force", 3)
    assert repository.inode(".partial/03/model") != before
    before = repository.inode(".partial/03/model")
    repository.edit()
    third = repository.commit()
    assert repository.main("--force", 3, "--accept-code-change").status == 0
    assert repository.inode() == before
    assert repository.commits() == [second, third]


def test_further_edits_of_a_dirty_tree_are_noticed(repository):
    new = repository.sample.folder / "steps.py"
    repository.edit("# one")
    repository.kill()
    for edit in (lambda: repository.edit("# two"), lambda: new.write_text("x = 1")):
        kept = repository.sample.script.read_text()
        edit()
        result = repository.main()
        assert result.status == 1
        commit = repository.first[:12]
        assert f"commit {commit} with changes " in result.output
        assert f" -> {commit} with changes " in result.output
        repository.sample.script.write_text(kept)
        new.unlink(missing_ok=True)
    assert repository.main().status == 0
    git = repository.marker["git"]
    assert git == repository.marker["attempts"][0]["code"]["git"]
    assert (git["dirty"], len(git["changes"])) == (True, 32)


def test_code_that_is_edited_while_a_stage_runs_is_in_its_marker(repository):
    """Its worker processes may have imported either."""
    script = repository.sample.script

    def edit():
        script.write_text(script.read_text().replace("previous} {config", "previous}  {config"))

    first = repository.main("--stop-stage", 2)
    assert "warning" not in first.output
    result = repository.main(at_write=14, fault=edit)
    assert result.status == 0
    assert "warning: while stage 3 ran, its function changed" in result.output
    assert result.output.count("warning: while") == 1
    old, new = (attempt["code"]["git"] for attempt in repository.marker["attempts"])
    assert (old["commit"], old["dirty"]) == (repository.first, False)
    assert (new["commit"], new["dirty"]) == (repository.first, True)
    assert repository.marker["stage_code"] is None
    assert "  3 " in repository.main("--stale-code").output


def test_a_python_file_that_git_does_not_know_makes_it_dirty(repository):
    (repository.sample.folder / "steps.py").write_text("x = 1")
    assert repository.main().status == 0
    assert repository.marker["git"]["dirty"] is True


def test_other_packages_are_named_and_not_continued_with(repository, monkeypatch):
    repository.kill()
    monkeypatch.setattr(code, "versions", lambda real=code.versions: real() | {"torch": "9.9"})
    result = repository.main()
    assert result.status == 1
    assert f"packages: torch {code.metadata.version('torch')} -> 9.9. To" in result.output
    assert repository.main("--accept-code-change").status == 0
    versions = [a["code"]["versions"]["torch"] for a in repository.marker["attempts"]]
    assert versions == [code.metadata.version("torch"), "9.9"]


def test_outside_of_git_the_sources_tell(sample):
    sample.main(env={"FAULT": "3:middle:kill"})
    sample.script.write_text(sample.script.read_text() + "\n# edited\n")
    present_code.cache_clear()
    result = sample.main()
    assert result.status == 1
    assert "stage 3 was begun with other code or packages: sources " in result.output
    assert sample.main("--accept-code-change").status == 0


def test_a_record_from_before_is_continued_and_said_to_be_unknown(upgraded):
    plain = json.loads(upgraded.record.read_text())
    del plain["attempts"]
    upgraded.record.write_text(json.dumps(plain))
    assert "code unknown" in upgraded.main("--list").output
    assert "would run: partial 25 %" in upgraded.main("--dry-run").output
    assert upgraded.main().status == 0
    assert upgraded.inode() == upgraded.before
    assert upgraded.commits() == ["unknown", upgraded.second]
    assert "code unknown" in upgraded.main("--list").output


def test_the_list_has_a_column_only_where_code_differs(repository):
    assert repository.main().status == 0
    none = "no stage was made by other code or other packages than the present ones\n"
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
    change = short(repository.first, second)
    assert repository.main("--stale-code").output.splitlines() == [
        f"  1 Prepare the corpus (done): {change}",
        f"  2 Build the lexicon (done): {change}",
        f"  5 Decode the test split (done): {change}",
    ]


def test_a_partial_stage_of_other_code_is_listed(upgraded):
    listed = upgraded.main("--stale-code").output
    assert f"  3 Train the model (partial): {short(upgraded.first, upgraded.second)}" in listed


def test_markers_from_before_are_read_as_before(repository):
    assert repository.main().status == 0
    for path in (repository.sample.exp / "stages").glob("0?.json"):
        plain = json.loads(path.read_text())
        del plain["attempts"], plain["git"]["changes"], plain["versions"]["numpy"]
        path.write_text(json.dumps(plain))
    assert repository.main().output.count("done, skipped") == 4
    assert "code" not in repository.main("--list").output.splitlines()[0].split()
    repository.edit()
    repository.commit()
    assert f"commit {repository.first[:12]}" in repository.main("--list").output
    path = repository.sample.exp / "stages" / "03.json"
    path.write_text(path.read_text().replace(f'"{repository.first}"', "null"))
    assert "code unknown" in repository.main("--list").output


@pytest.fixture
def of_k2(sample):
    """The first two stages are done, by k2 as their markers say."""
    assert sample.main("--stop-stage", "2").status == 0
    for number in (1, 2):
        set_engine(sample, number, "k2")
    return sample


def set_engine(sample, number, name):
    path = sample.exp / "stages" / f"0{number}.json"
    marker = json.loads(path.read_text())
    if name is None:
        del marker["versions"]["search"]
    else:
        marker["versions"]["search"] = name
    path.write_text(json.dumps(marker))


def test_engines_are_not_mixed_in_a_run_directory(of_k2):
    """Lattices of one engine and features of another are no experiment."""
    result = of_k2.main()
    assert result.status == 1
    assert "was run with k2 for search, here it is native" in result.output
    assert "Set TOOLKIT_SEARCH=k2" in result.output
    assert not (of_k2.exp / "stages" / "03.json").exists()
    assert of_k2.main("--accept-code-change").status == 0


def test_where_nothing_runs_or_nothing_stays_engines_may_differ(of_k2):
    assert of_k2.main("--stop-stage", "2").status == 0  # done, skipped
    assert of_k2.main("--force", "1", "--force", "2", "--stop-stage", "2").status == 0
    assert of_k2.main().status == 0


def test_a_stage_that_names_no_engine_mixes_with_any(of_k2):
    """Markers from before engines were recorded."""
    for number in (1, 2):
        set_engine(of_k2, number, None)
    assert of_k2.main().status == 0


def test_an_engine_that_is_not_installed_is_told_at_once(sample, monkeypatch):
    monkeypatch.setitem(sys.modules, "k2", None)
    result = sample.main(env={"TOOLKIT_SEARCH": "k2"}, before=present_code.cache_clear)
    assert result.status == 1
    assert "TOOLKIT_SEARCH is 'k2', which is not installed" in result.output
    assert not (sample.exp / "stages" / "01.json").exists()
