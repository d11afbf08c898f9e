"""Kills, full disks and interrupts at any write of a run, then the same command again."""

import errno
import os
import random
import shutil
import signal
import time

import pytest

WRITES = 160  # of an uninterrupted run, rounded up
EVERY = 3  # tried at every third write, to save time


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def assert_recovers(sample, finished, context):
    result = sample.main()
    assert result.status == 0, (context, result.output)
    assert sample.outputs() == finished, context
    assert sample.leftovers() == [], context
    assert sample.main().output.count("done, skipped") == 4, context


def points(offset):
    return range(1 + offset, WRITES, EVERY)


@pytest.mark.long
def test_a_kill_at_any_write_loses_no_finished_stage(sample, finished):
    killed = 0
    for point in points(0):
        shutil.rmtree(sample.exp, ignore_errors=True)
        result = sample.main(at_write=point, fault=die)
        done = {int(p.stem) for p in sample.exp.glob("stages/??.json")}
        announced = result.output.count("== ")
        killed += result.status == -signal.SIGKILL
        # Every stage but the last announced one is there for good.
        assert len(done) >= announced - 1, (point, result.output)
        assert_recovers(sample, finished, point)
    assert killed > 40


@pytest.mark.long
def test_a_kill_while_stages_are_made_again_leaves_old_or_new(sample, finished):
    assert sample.main("--set", "train.epochs=3", "--set", "lang.upper=1").status == 0
    template = sample.folder / "template"
    shutil.copytree(sample.exp, template)
    for point in points(1):
        shutil.rmtree(sample.exp)
        shutil.copytree(template, sample.exp)
        sample.main(at_write=point, fault=die)
        assert_recovers(sample, finished, point)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_a_run_killed_repeatedly_ends_with_equal_outputs(sample, finished, seed):
    dice = random.Random(seed)
    for attempt in range(200):
        force = ["--force", "3"] * (attempt == 0)
        result = sample.main(*force, at_write=dice.randint(1, 45), fault=die)
        if result.status == 0:
            break
    assert result.status == 0
    assert attempt > 3
    assert_recovers(sample, finished, seed)


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "message"),
    [(errno.ENOSPC, "the disk is full"), (errno.EROFS, "cannot be written")],
)
def test_a_disk_failure_at_any_write_is_reported_and_loses_nothing(
    sample, finished, number, message
):
    def fail():
        raise OSError(number, os.strerror(number), str(sample.exp / "file"))

    failures = 0
    for point in range(1 + number % 3, WRITES, 5):
        shutil.rmtree(sample.exp, ignore_errors=True)
        result = sample.main(at_write=point, fault=fail)
        assert result.status in (0, 1), (point, result.output)
        if result.status:
            failures += 1
            assert message in result.output
            assert "Traceback" not in result.output
        assert_recovers(sample, finished, point)
    assert failures > 5


@pytest.mark.long
def test_an_interrupt_at_any_write_is_reported_and_loses_nothing(sample, finished):
    def hear():  # what a shell starts in the background ignores Ctrl-C
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt():
        os.kill(os.getpid(), signal.SIGINT)

    for point in range(3, WRITES, 9):
        shutil.rmtree(sample.exp, ignore_errors=True)
        result = sample.main(at_write=point, fault=interrupt, setup=hear)
        if result.status:
            assert result.status == 130, result.output
            assert "; run the same command again to continue" in result.output
            assert "Traceback" not in result.output
        assert_recovers(sample, finished, point)


@pytest.mark.long
def test_real_processes_killed_at_random_moments_end_equal(sample):
    arguments = ["--profile", "long"]
    reference = sample.folder / "reference"
    assert sample.main(*arguments, "--exp", reference).status == 0
    dice = random.Random(7)
    for _ in range(6):
        # Forty epochs of 20 ms are never done in this time.
        process = sample.process(*arguments, EPOCH_SECONDS="0.02")
        time.sleep(dice.uniform(0.2, 0.6))
        process.kill()
        process.communicate()
    result = sample.main(*arguments)
    assert result.status == 0, result.output
    exp = sample.folder / "exp" / "long"
    assert sample.outputs(exp) == sample.outputs(reference)
    assert sample.leftovers(exp) == []


def test_a_long_stage_continues_where_it_was_killed(sample):
    process = sample.process("--profile", "long", EPOCH_SECONDS="0.05")
    partial = sample.folder / "exp" / "long" / ".partial" / "03" / "model"
    deadline = time.monotonic() + 30
    while not (partial / "5.json").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.communicate()
    times = {path.name: path.stat().st_mtime_ns for path in partial.glob("[0-9]*.json")}
    assert len(times) >= 6
    listing = sample.main("--profile", "long", "--list").output
    assert "partial 2 %" in listing
    (partial / ".6.json.0123abcd.tmp").write_text("half")
    result = sample.main("--profile", "long")
    assert "resuming the interrupted attempt" in result.output
    model = sample.folder / "exp" / "long" / "model"
    assert {name: (model / name).stat().st_mtime_ns for name in times} == times
    assert not list(model.glob(".*"))


def killed_in_training(sample, *arguments):
    """Kill a run in the middle of stage 3, with some epochs done."""
    for point in range(60, WRITES, 4):
        if sample.exp.exists():
            shutil.rmtree(sample.exp)
        sample.main(*arguments, at_write=point, fault=die)
        if (sample.exp / ".partial" / "03" / "model" / "1.json").exists():
            return (sample.exp / ".partial" / "03" / "model" / "0.json").stat().st_ino
    raise AssertionError


def inode(sample):
    return (sample.exp / "model" / "0.json").stat().st_ino


def test_a_partial_output_of_other_parameters_is_discarded(sample):
    first = killed_in_training(sample)
    result = sample.main("--set", "train.rate=0.25")
    assert "   starts over: `train.rate` 0.5 -> 0.25\n" in result.output
    assert inode(sample) != first
    fresh = sample.folder / "fresh"
    assert sample.main("--set", "train.rate=0.25", "--exp", fresh).status == 0
    assert sample.outputs() == sample.outputs(fresh)


def test_a_partial_output_of_other_inputs_is_discarded(sample):
    killed_in_training(sample)
    result = sample.main("--set", "lang.extra=zebra")
    reason = "input `lang/phones/count` changed (and 1 more files); input `words.txt` changed"
    assert f"   starts over: {reason}\n" in result.output
    fresh = sample.folder / "fresh"
    assert sample.main("--set", "lang.extra=zebra", "--exp", fresh).status == 0
    assert sample.outputs() == sample.outputs(fresh)


def test_force_starts_over_once_and_the_same_command_continues(sample, finished):
    first = killed_in_training(sample)
    sample.main("--force", 3, env={"FAULT": "3:middle:value"})
    second = (sample.exp / ".partial" / "03" / "model" / "0.json").stat().st_ino
    assert second != first
    result = sample.main("--force", 3)
    assert "resuming the interrupted attempt" in result.output
    assert inode(sample) == second
    assert sample.outputs() == finished


def test_a_partial_output_survives_a_run_that_skips_its_stage(sample):
    assert sample.main().status == 0
    sample.main("--set", "train.epochs=6", env={"FAULT": "3:middle:value"})
    assert sample.main().output.count("done, skipped") == 4
    result = sample.main("--set", "train.epochs=6")
    assert "resuming the interrupted attempt" in result.output


@pytest.mark.parametrize(
    ("fault", "message", "traceback"),
    [
        ("3:middle:value", "ValueError: the loss is not a number", True),
        (
            "3:middle:memory",
            "there is not enough memory. Finished work is kept; run the same command again with a "
            "smaller --jobs, or with smaller batches if a single process trains.",
            False,
        ),
        ("3:middle:toolkit", "utterance a-1 is broken; see `toolkit doctor`", False),
        ("3:middle:exit", "SystemExit: 0", True),
    ],
)
def test_a_stage_that_raises_leaves_its_traceback_and_resumes(
    sample, finished, fault, message, traceback
):
    result = sample.main(env={"FAULT": fault})
    assert result.status == 1
    assert f"error: stage 3 (Train the model) failed: {message}" in result.output
    assert ("Traceback" in result.output) is traceback
    left = sample.exp / "stages" / "03.failed.txt"
    assert left.read_text().startswith(f"{message}\n")
    assert "misbehave" in left.read_text()
    assert str(left) in result.output
    assert f"failed 25 %: {message}" in " ".join(sample.main("--list").output.split())
    assert_recovers(sample, finished, fault)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["pipe", "latin"])
def test_an_unreadable_traceback_file_stops_nothing(sample, finished, kind):
    failure_file = sample.exp / "stages" / "03.failed.txt"
    failure_file.parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(failure_file)
    else:
        failure_file.write_bytes(b"gr\xfcn\n")
    message = "not a regular file" if kind == "pipe" else "gr\ufffdn"
    assert message in " ".join(sample.main("--list").output.split())
    result = sample.main()
    assert result.status == 0, result.output
    assert sample.outputs() == finished
