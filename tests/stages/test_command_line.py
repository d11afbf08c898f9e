import json
import os
import re
import shutil
import signal
import subprocess
import sys
from functools import partial

import pytest

from tests.log_lines import TIME
from toolkit.stages.bootstrap import NEEDED

TITLES = ["Prepare the corpus", "Build the lexicon", "Train the model", "Decode the test split"]


def lines(result):
    assert result.status == 0, result.output
    return result.output.splitlines()


def test_a_run_announces_each_stage_with_time_and_headline(sample):
    printed = lines(sample.main())
    assert printed[0] == "== 1 Prepare the corpus (--stage 1)"
    assert printed[1].endswith(" s; utterances 2")
    assert printed[-2] == "== 5 Decode the test split (--stage 5)"
    assert printed[-1].endswith(" s; wer 8.25, words 12")
    log = (sample.exp / "log.txt").read_text().splitlines()
    assert [line.split(" ", 1)[1] for line in log] == printed


def test_lines_that_do_not_go_to_a_terminal_have_times(sample):
    printed = sample.main().raw.splitlines()
    assert all(re.match(TIME, line) for line in printed)
    assert printed[0].split(" ", 1)[1] == "== 1 Prepare the corpus (--stage 1)"


def test_a_quiet_run_prints_nothing_and_a_verbose_one_prints_times(sample):
    assert lines(sample.main("--quiet")) == []
    assert "== 5 Decode the test split (--stage 5)" in (sample.exp / "log.txt").read_text()
    verbose = sample.main("--verbose")
    assert re.match(TIME, verbose.raw)
    assert lines(verbose)[0] == "-- 1 Prepare the corpus: done, skipped"
    failed = sample.main("--quiet", "--force", "3", env={"FAULT": "3:middle:value"})
    assert failed.status == 1
    assert "the loss is not a number" in failed.output


def test_list_shows_every_state(sample):
    table = lines(sample.main("--list"))
    assert table[0].split() == ["stage", "title", "state", "time", "result"]
    assert [line[7:28].strip() for line in table[1:]] == TITLES
    assert all("pending" in line for line in table[1:])
    assert not sample.exp.exists()

    sample.main(env={"FAULT": "3:middle:value"})
    table = lines(sample.main("--list"))
    state, seconds, *result = table[1].split("corpus")[1].split()
    assert [state, *result] == ["done", "s", "utterances", "2"]
    marker = json.loads((sample.exp / "stages" / "01.json").read_text())
    assert seconds == f"{marker['seconds']:.1f}"  # 0.0, but on a busy machine
    assert "failed 25 %: ValueError: the loss is not a number" in table[3]
    assert table[4].endswith("pending")

    sample.main()
    table = lines(sample.main("--list", "--set", "train.rate=1"))
    assert "stale: `train.rate` 0.5 -> 1.0" in table[3]
    assert "loss 0.125" in table[3]
    assert "done (will run if stage 3 changes its outputs)" in table[4]


def test_on_finish_is_called_when_the_last_stage_is_done(sample):
    show = "on_finish=lambda run: print((run / 'results.json').exists(), run.name)"
    script = sample.script.read_text().replace('"Four small stages."', f'"Four.", {show}')
    sample.script.write_text(script)
    assert "True demo" not in lines(sample.main("--stop-stage", 3))
    assert lines(sample.main())[-1] == "True demo"
    assert lines(sample.main())[-2:] == ["-- 5 Decode the test split: done, skipped", "True demo"]
    for option in ("--list", "--dry-run"):
        assert "True demo" not in lines(sample.main(option))


@pytest.mark.parametrize("option", ["--dry-run", "--list", "--stale-code"])
def test_it_ends_quietly_when_its_output_is_closed(sample, option):
    unread, output = os.pipe()
    os.close(unread)
    ended = subprocess.run(
        [sys.executable, str(sample.script), option],
        cwd=sample.folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(output)
    assert (ended.returncode, ended.stderr) == (1, "")


def test_a_dry_run_prints_the_plan_with_reasons_and_changes_nothing(sample):
    assert lines(sample.main("--dry-run"))[0] == "  1 Prepare the corpus: would run: never run"
    assert not sample.exp.exists()
    sample.main()
    times_before = {path: path.stat().st_mtime_ns for path in sample.exp.rglob("*")}
    assert lines(sample.main("--dry-run", "--force", 2, "--set", "train.epochs=5")) == [
        "  1 Prepare the corpus: would skip: done",
        "  2 Build the lexicon: would run: forced",
        "  3 Train the model: would run: `train.epochs` 4 -> 5",
        "  5 Decode the test split: would run if stage 3 changes its outputs",
    ]
    assert {path: path.stat().st_mtime_ns for path in sample.exp.rglob("*")} == times_before


def test_a_range_of_stages_runs_in_order(sample):
    printed = lines(sample.main("--stage", "01", "--stop-stage", 2))
    assert [line for line in printed if line.startswith("==")] == [
        "== 1 Prepare the corpus (--stage 1)",
        "== 2 Build the lexicon (--stage 2)",
    ]
    printed = lines(sample.main("--stage", 2, "--stop-stage", 3))
    assert printed[0] == "-- 2 Build the lexicon: done, skipped"
    assert printed[1] == "== 3 Train the model (--stage 3)"
    assert not any("Decode" in line for line in printed)


def test_a_range_that_starts_too_late_warns_and_names_what_is_missing(sample):
    result = sample.main("--stage", 3)
    assert result.status == 1
    assert result.output.splitlines()[:2] == [
        "warning: stage 1 (Prepare the corpus) is pending; not run because of --stage 3",
        "warning: stage 2 (Build the lexicon) is pending; not run because of --stage 3",
    ]
    assert (
        "error: stage 3 (Train the model) failed: `words.txt` is missing; not done yet: "
        "stage 1 (Prepare the corpus), 2 (Build the lexicon). Run from there: --stage 1"
    ) in result.output
    assert "Traceback" not in result.output
    assert "warning: stage 1" in sample.main("--stage", 3, "--dry-run").output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--stage", "4"], "--stage 4: no such stage; did you mean 3 ("),
        (["--stage", "99"], "did you mean 5 ("),
        (["--stop-stage", "trian"], "--stop-stage trian: no such stage; did you mean 3 ("),
        (["--force", "6"], "--force 6: no such stage; did you mean 5 ("),
        (["--stage", "-1"], "--stage -1: no such stage"),
        (["--stage", "5", "--stop-stage", "2"], "--stop-stage 2 comes before --stage 5"),
        (["--force", "1", "--stage", "3"], "--force 1 is outside stages 3 to 5"),
        (["--profile", "demoo"], "no profile `demoo`; did you mean `demo`? Profiles: demo, long"),
        (["--set", "train.epoch=3"], "unknown key `train.epoch`; did you mean `train.epochs`?"),
        (["--set", "train.epochs=x"], "`train.epochs` expects int, not 'x'"),
        (["--set", "train.epochs=0"], "`train.epochs`: at least one epoch is needed"),
        (["--config", "none.yaml"], "No such file"),
        (["--exp", ""], "--exp is empty"),
        (["--profile", ""], "no profile ``"),
    ],
)
def test_a_fault_on_the_command_line_is_one_message(sample, arguments, message):
    for more in ([], ["--list"], ["--dry-run"]):
        result = sample.main(*arguments, *more)
        assert result.status == 1
        assert result.output.startswith("error: ")
        assert message in result.output
        assert result.output.count("\n") == 1
    assert not sample.exp.exists()


def test_an_unknown_option_suggests_the_nearest(sample):
    result = sample.main("--stop-stge", "3")
    assert result.status == 2
    assert "--stop-stage" in result.output


def test_help_lists_options_and_stages(sample):
    text = lines(sample.main("--help"))
    assert "    5  Decode the test split" in text
    assert any(line.strip() == "Four small stages." for line in text)


def test_settings_come_from_profile_then_file_then_set(sample):
    (sample.folder / "conf").mkdir()
    file = sample.folder / "conf" / "my.yaml"
    file.write_text("train:\n  epochs: 2\n  rate: 0.125\ncorpus: {root: ../corpus}\n")
    result = sample.main("--config", file, "--set", "train.epochs=3")
    assert result.status == 0, result.output
    assert len(list((sample.exp / "model").glob("[0-9].json"))) == 3
    result = sample.main("--dry-run", "--config", file)
    assert "`train.epochs` 3 -> 2" in result.output


def test_settings_with_missing_paths_are_reported_before_anything_runs(sample):
    missing = sample.folder / "nothing"
    note = f"note: corpus.root={missing} does not exist"
    for more in (["--dry-run"], []):
        assert note in sample.main("--set", f"corpus.root={missing}", *more).output
    assert note not in sample.main("--dry-run").output
    pattern = f"corpus.root={missing}/*.txt"
    assert "note: corpus.root=" not in sample.main("--dry-run", "--set", pattern).output


def test_list_and_dry_run_exclude_each_other(sample):
    result = sample.main("--list", "--dry-run")
    assert result.status == 1
    assert "give only one of them" in result.output


def test_the_last_runs_settings_are_recalled_when_they_differ(sample):
    sample.main("--set", "train.epochs=3", "--set", "lang.extra=a b")
    options = "--set train.epochs=3 --set 'lang.extra=a b'"
    note = f"note: the last run in {{}} had different options: {options}\n"
    assert note.format(sample.exp) in sample.main("--list").output
    assert "note:" not in sample.main("--set", "train.epochs=3", "--set", "lang.extra=a b").output
    assert (
        "note:"
        not in sample.main("--list", "--set", "train.epochs=3", "--set", "lang.extra=a b").output
    )
    listing = sample.main("--profile", "long", "--exp", sample.exp, "--list").output
    assert "had different options: --profile demo --set train.epochs=3" in listing


def test_a_directory_of_another_recipe_is_refused(sample):
    sample.main()
    sample.script.write_text(sample.script.read_text().replace('Recipe("sample"', 'Recipe("other"'))
    result = sample.main("--list")
    assert result.status == 1
    assert "holds a run of the recipe sample" in result.output


def test_a_second_run_in_the_same_directory_is_refused(sample):
    process = sample.process(FAULT="1:end:sleep")
    assert " == 1 " in process.stdout.readline()
    assert process.stdout.readline() == "sleeping\n"
    result = sample.main()
    assert result.status == 1
    assert f"another run is going on in {sample.exp}: process {process.pid}" in result.output
    assert sample.main("--list").status == 0
    assert sample.main("--exp", sample.folder / "other").status == 0
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate()
    assert process.returncode == 130
    assert "interrupted in stage 1; run the same command again to continue" in output
    assert sample.main().status == 0


@pytest.mark.long
def test_two_runs_started_at_once_do_not_mix(sample, finished):
    # So long that the first is not done before the last has started, on busy machines too.
    processes = [sample.process(EPOCH_SECONDS="2") for _ in range(3)]
    outputs = [process.communicate()[0] for process in processes]
    statuses = sorted(process.returncode for process in processes)
    assert statuses == [0, 1, 1], outputs
    assert sum("another run is going on" in output for output in outputs) == 2
    assert sample.outputs() == finished


def test_paths_on_the_command_line_start_from_the_callers_directory(sample, tmp_path):
    caller = tmp_path / "elsewhere"
    caller.mkdir()
    shutil.move(sample.folder / "corpus", caller / "speech")
    process = sample.process("--set", "corpus.root=speech", "--exp", "mine", cwd=caller)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert (caller / "mine" / "results.json").exists()
    assert not sample.exp.exists()


def test_from_any_directory_and_through_a_link_the_recipes_folder_counts(sample, tmp_path):
    link = tmp_path / "bin" / "link.py"
    link.parent.mkdir()
    link.symlink_to(sample.script)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "bin/link.py", "--stop-stage", "1"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    assert (sample.exp / "data").exists()
    assert not (tmp_path / "bin" / "exp").exists()


def test_nothing_heavy_is_imported_to_run_or_list(sample):
    sample.main()
    heavy = [*(set(NEEDED) - {"click", "yaml"}), "numpy", "k2", "torchaudio"]
    sample.script.write_text(
        sample.script.read_text().replace(
            "    recipe.main()",
            f"    import atexit, sys\n    atexit.register(lambda: print([m for m in {heavy!r} "
            "if m in sys.modules]))\n    recipe.main()",
        )
    )
    output, _ = sample.process("--list").communicate()
    assert output.splitlines()[-1] == "[]"
    output, _ = sample.process("--force", 1).communicate()
    assert output.splitlines()[-1] == "[]"


NOT_UTF8 = "bad\udcff"  # as Python has a byte that is no UTF-8


@pytest.mark.parametrize(
    "arguments",
    [("--exp", f"{NOT_UTF8}/exp"), ("--set", f"corpus.root={NOT_UTF8}"), ("--stage", NOT_UTF8)],
)
def test_paths_that_are_not_utf8_are_refused_at_once(sample, arguments):
    """They cannot be written to markers and logs, so such a run could not finish."""
    (sample.folder / NOT_UTF8).mkdir()
    result = sample.main(*arguments, setup=lambda: os.chdir(sample.folder))
    assert result.status == 1
    assert r"bad\xff" in result.output
    assert "Traceback" not in result.output
    assert not [*sample.folder.rglob("stages")]


def test_a_run_directory_may_not_be_below_a_folder_that_is_not_utf8(sample):
    (sample.folder / NOT_UTF8).mkdir()
    enter = partial(os.chdir, sample.folder / NOT_UTF8)
    result = sample.main("--exp", "exp", setup=enter)
    assert (result.status, "rename the file or folder" in result.output) == (1, True)


def test_the_list_can_be_json(sample):
    sample.main("--stop-stage", 2)
    rows = json.loads(sample.main("--list", "--json").output)
    assert [row["title"] for row in rows] == TITLES
    assert [row["state"] for row in rows] == ["done", "done", "pending", "pending"]
    assert rows[0]["result"] == {"utterances": 2}
    assert rows[0]["seconds"] >= 0
    assert rows[2]["seconds"] is None
    assert rows[0]["peak_bytes"] > 2**20
    assert rows[2]["peak_bytes"] is None
    refused = sample.main("--json")
    assert refused.status == 1
    assert "--json needs --list" in refused.output
