"""`toolkit runs`, `toolkit clean` and `toolkit config` on a small recipe."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from toolkit.cli import main
from toolkit.report.run_folder import RunFolder, find_runs

ROOT = Path(__file__).resolve().parents[2]
RUN = f"""
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, {str(ROOT)!r})
from toolkit.stages.recipe import Recipe
from toolkit.storage.files import write_atomically


@dataclass(frozen=True)
class Config:
    size: int = 3
    \"\"\"Letters of the store.\"\"\"


recipe = Recipe("tiny", Path(__file__), {{"demo": Config, "large": lambda: Config(9)}})


@recipe.stage(1, "Extract features")
def extract(run):
    write_atomically(run.make("fbank"), "x" * run.config.size)
    return {{"size": run.config.size}}


@recipe.stage(2, "Write the results")
def results(run):
    run.need("fbank")
    write_atomically(run.make("final"), "bundle")
    row = {{"system": "a", "split": "dev", "lm": "l", "wer": 5.0, "cer": 2.0, "ins": 0, "del": 0,
           "sub": 1, "ref_words": 20, "rtf": 0.1, "command": "c"}}
    import json
    rows = [row, row | {{"system": "b", "wer": 4.0}}]
    write_atomically(run.make("results.json"), json.dumps(rows))
    return {{}}


if __name__ == "__main__":
    recipe.main()
"""


def toolkit(*arguments):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    return result


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny/run.py").write_text(RUN)
    return tmp_path / "tiny"


def run(recipe, *arguments):
    command = [sys.executable, str(recipe / "run.py"), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_a_cleaned_run_is_recreated(recipe):
    run(recipe)
    exp = recipe / "exp/demo"
    original = {path.name: path.read_bytes() for path in exp.iterdir() if path.is_file()}
    listing = toolkit("clean", exp)
    assert listing.output.splitlines()[0].endswith("fbank  (stage 1: Extract features)")
    assert "can be removed" in listing.output
    assert (exp / "fbank").exists()
    plan = json.loads(toolkit("clean", exp, "fbank", "--dry-run", "--json").output)
    assert (plan["removed"], plan["outputs"][0]["size"]) == (False, 3)
    repeated = json.loads(toolkit("clean", exp, "fbank", "fbank/", "--dry-run", "--json").output)
    assert repeated == plan
    assert toolkit("clean", exp, "fbank").output.endswith(" MB removed\n")
    assert not (exp / "fbank").exists()
    assert not list((exp / ".partial").rglob("*"))
    assert "stale" in run(recipe, "--list")
    run(recipe)
    recreated = {path.name: path.read_bytes() for path in exp.iterdir() if path.is_file()}
    assert {**recreated, "log.txt": b""} == {**original, "log.txt": b""}
    assert toolkit("clean", exp, "--all").exit_code == 0
    assert {path.name for path in exp.iterdir()} >= {"final", "results.json", "stages"}
    assert not (exp / "fbank").exists()


def test_a_report_page_is_not_replaced_after_its_inputs_were_removed(recipe):
    run(recipe)
    exp = recipe / "exp/demo"
    assert toolkit("report", exp).exit_code == 0
    toolkit("clean", exp, "fbank")
    page = (exp / "report.html").read_bytes()
    refused = toolkit("report", exp)
    assert refused.exit_code == 1
    assert "removed (fbank)" in refused.output
    assert (exp / "report.html").read_bytes() == page
    assert toolkit("report", exp, "--out", exp / "after.html").exit_code == 0
    (exp / "report.html").unlink()
    assert toolkit("report", exp).exit_code == 0


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["final"], "final is never removed"),
        (["results.json"], "never removed"),
        (["../other"], "no output ../other"),
        (["stages"], "have no output stages. The outputs that can be removed are: fbank"),
        (["--all", "fbank"], "give --all or the names"),
    ],
)
def test_clean_refuses_results_and_unknown_names(recipe, names, message):
    run(recipe)
    result = toolkit("clean", recipe / "exp/demo", *names)
    assert result.exit_code in (1, 2)
    assert message in result.output
    assert (recipe / "exp/demo/fbank").exists()


def test_runs_are_listed_with_results_and_size(recipe):
    assert toolkit("runs", recipe).output == "no runs here\n"
    run(recipe)
    (record,) = json.loads(toolkit("runs", recipe.parent, "--json").output)
    assert record["path"] == str(recipe / "exp/demo")
    assert (record["recipe"], record["profile"], record["stages_done"]) == ("tiny", "demo", 2)
    assert record["best"] == {"dev": [4.0, "b"]}
    files = [path for path in (recipe / "exp").rglob("*") if path.is_file()]
    assert record["bytes"] == sum(path.stat().st_size for path in files)
    assert "WER dev 4.00 (b)" in toolkit("runs", recipe).output


def test_runs_behind_links_are_listed_once(recipe, tmp_path):
    run(recipe)
    disk, project = tmp_path / "disk", tmp_path / "other"
    (recipe / "exp").rename(disk)
    (recipe / "exp").symlink_to(disk)
    project.mkdir()
    (project / "exp").mkdir()
    (project / "exp/base").symlink_to(disk / "demo")
    (project / "exp/corpus").symlink_to("/")
    (project / "exp/again").symlink_to(project / "exp")
    for folder, path in ((recipe, "exp/demo"), (project, "exp/base")):
        (record,) = json.loads(toolkit("runs", folder, "--json").output)
        assert (record["path"], record["stages_done"]) == (str(folder / path), 2)
        assert record["bytes"] > 100
    (record,) = json.loads(toolkit("runs", tmp_path, "--json").output)
    assert record["path"] == str(disk / "demo")


def test_an_unfinished_run_is_listed_with_its_decoded_results(recipe):
    run(recipe)
    rows = json.loads((recipe / "exp/demo/results.json").read_text())
    (recipe / "exp/demo/results.json").unlink()
    for row in rows:
        folder = recipe / "exp/demo/decode" / row["system"]
        folder.mkdir(parents=True)
        (folder / "rows.json").write_text(json.dumps([row]))
    (recipe / "exp/demo/decode/c").mkdir()
    (recipe / "exp/demo/decode/c/rows.json").write_text("[")
    (record,) = json.loads(toolkit("runs", recipe, "--json").output)
    assert record["best"] == {"dev": [4.0, "b"]}


def test_newer_decodes_replace_rows_of_the_last_stage(recipe):
    run(recipe)
    rows = json.loads((recipe / "exp/demo/results.json").read_text())
    updated, unlisted = {**rows[0], "wer": 1.5}, {**rows[0], "system": "z", "wer": 0.5}
    for row in (updated, unlisted):
        folder = recipe / "exp/demo/decode" / row["system"]
        folder.mkdir(parents=True)
        (folder / "rows.json").write_text(json.dumps([row]))
    (record,) = json.loads(toolkit("runs", recipe, "--json").output)
    assert record["best"][rows[0]["split"]] == [1.5, rows[0]["system"]]


def test_a_run_of_which_no_stage_is_done_is_listed(recipe):
    source = (recipe / "run.py").read_text()
    (recipe / "run.py").write_text(source.replace('run.make("fbank")', 'run.need("nothing")'))
    with pytest.raises(subprocess.CalledProcessError):
        run(recipe)
    (record,) = json.loads(toolkit("runs", recipe, "--json").output)
    assert (record["profile"], record["stages_done"], record["best"]) == ("demo", 0, {})


def test_settings_with_their_sources(recipe):
    assert toolkit("config", recipe).output.splitlines() == [
        "size = 3",
        "    default; int",
        "    Letters of the store.",
    ]
    (row,) = json.loads(toolkit("config", recipe, "size", "--profile", "large", "--json").output)
    assert (row["value"], row["source"], row["default"]) == (9, "profile large", 3)
    (row,) = json.loads(toolkit("config", recipe / "run.py", "--set", "size=4", "--json").output)
    assert (row["value"], row["source"]) == (4, "--set")
    for arguments, message in (
        (["sise"], "did you mean `size`"),
        (["--profile", "larg"], "did you mean `large`"),
    ):
        result = toolkit("config", recipe, *arguments)
        assert (result.exit_code, message in result.output) == (1, True)
    assert "is not a recipe" in toolkit("config", recipe.parent).output


def test_runs_are_listed_while_their_files_come_and_go(recipe, monkeypatch):
    run(recipe)
    (recipe / "other/stages").mkdir(parents=True)
    lstat, iterdir = os.lstat, Path.iterdir

    def vanished(path, **options):
        if str(path).endswith("fbank"):
            raise FileNotFoundError(path)
        return lstat(path, **options)

    def forbidden(path):
        if path.parent.name == "other":
            raise PermissionError(path)
        return iterdir(path)

    monkeypatch.setattr(os, "lstat", vanished)
    monkeypatch.setattr(Path, "iterdir", forbidden)
    result = toolkit("runs", recipe, "--json")
    assert [Path(record["path"]).name for record in json.loads(result.output)] == ["demo"]


def test_a_missing_folder_of_runs_is_an_error(tmp_path):
    result = toolkit("runs", tmp_path / "none")
    assert (result.exit_code, "none is not a folder" in result.output) == (1, True)


@pytest.mark.parametrize("fault", ["def f(:", "import not_there_at_all"])
def test_a_recipe_that_cannot_be_imported_is_named(recipe, fault):
    (recipe / "run.py").write_text(fault)
    result = toolkit("config", recipe)
    assert (result.exit_code, "run.py: cannot be imported" in result.output) == (1, True)


def test_a_run_that_is_removed_while_they_are_listed_is_left_out(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name / "stages").mkdir(parents=True)
        (tmp_path / name / "stages/last_command.json").write_text("{}")
    open_run = RunFolder.open

    def open_after_removal(root):
        shutil.rmtree(tmp_path / "a", ignore_errors=True)
        return open_run(root)

    monkeypatch.setattr(RunFolder, "open", open_after_removal)
    assert [Path(run.path).name for run in find_runs(tmp_path)] == ["b"]
