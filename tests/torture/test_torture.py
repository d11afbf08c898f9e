"""The harness itself, on tiny programs and hand-made run directories."""

import json
import os
import random
import shutil
import signal
import time

import pytest

from tests.torture import forked
from tests.torture.__main__ import stages
from tests.torture.comparison import FailedTrialError, compare, foreign_files
from tests.torture.counts import FAILED, OVER, Counts
from tests.torture.faults import FAULTS, Place, draw
from toolkit.storage.digests import combined, digest_bytes

FOREVER = "print('began', flush=True)\nwhile True: signal.pause()\n"


@pytest.fixture
def run(tmp_path):
    """Run the lines of a program in a forked process, until it has printed `began`."""
    began = []

    def start(lines, **options):
        script = tmp_path / "script.py"
        script.write_text(lines)
        began.append(forked.start(script, ["--x"], tmp_path / "modules", **options))
        began[-1].hear("began", 60)
        return began[-1]

    yield start
    for process in began:
        process.kill()


def test_a_forked_program_has_its_arguments_output_and_exit_status(run, tmp_path):
    process = run("import sys, wave\nprint(__name__, sys.argv[1:])\nsys.exit(3)")
    assert process.wait(60) == 3
    assert process.output == "__main__ ['--x']\n"
    assert not (tmp_path / "modules").exists()
    assert run("import atexit\n").wait(60) == 0
    assert "atexit" in (tmp_path / "modules").read_text().split()
    assert run("raise ValueError('so')").wait(60) == 1
    assert (
        run("import threading\nthreading.Thread(target=print, args=('late',)).start()").wait(60)
        == 0
    )


def test_kill_reaches_the_workers(run):
    process = run(
        "import os\npid = os.fork()\nif pid: print(pid, 'began', flush=True)\nwhile True: pass\n"
    )
    worker = int(process.output.split()[0])
    assert os.getpgid(worker) == process.pid != os.getpgid(0)
    process.kill()
    assert process.poll() == -signal.SIGKILL
    while not zombie_or_gone(worker):  # it dies when it is next scheduled
        time.sleep(0.01)


def zombie_or_gone(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def test_the_size_limit_holds_for_files_but_not_for_the_output(run, tmp_path):
    lines = f"print('x' * 5000)\nwith open({str(tmp_path / 'big')!r}, 'w') as file:"
    lines += "\n    file.write('x' * 2000)"
    process = run(lines, limit=1000)
    assert process.wait(60) == 1
    assert "File too large" in process.output
    assert len(process.output) > 5000


def test_the_clock_jumps_at_the_signal(run, tmp_path):
    process = run(
        "import time\nbefore = time.time()\nprint('began', flush=True)\n"
        "while abs(time.time() - before) < 1e6: pass\nprint(time.time() - before)",
        jump=-1e7,
    )
    Place(tmp_path, False).strike(draw("clock", random.Random(0)), process)
    assert process.wait(60) == 0
    assert float(process.output.split()[-1]) == pytest.approx(-1e7, abs=1e5)


def test_folders_without_permission_hold_for_root_too_and_are_repaired(run, tmp_path):
    place = Place(tmp_path, False)
    (tmp_path / "stages" / "deep").mkdir(parents=True)
    place.strike(draw("unwritable", random.Random(0)), None)
    lines = f"open({str(tmp_path / 'stages' / 'deep' / 'x')!r}, 'w')"
    process = run(lines)
    assert process.wait(60) == 1
    assert "PermissionError" in process.output
    place.repair()
    assert run(lines).wait(60) == 0


@pytest.mark.parametrize("kind", ["kill", "stop", "term", "int"])
def test_signals_end_a_process_as_the_harness_expects(run, tmp_path, kind):
    lines = "import signal, sys\nsignal.signal(15, lambda *_: sys.exit(143))\n"
    lines += "signal.signal(2, lambda *_: sys.exit(130))\n"
    process, fault = run(lines + FOREVER), draw(kind, random.Random(0))
    Place(tmp_path, False).strike(fault, process)
    assert process.wait(60) == fault.status


def test_a_disk_that_others_use_is_not_filled(tmp_path):
    with pytest.raises(ValueError, match="others use"):
        Place(tmp_path, False).strike(draw("full", random.Random(0)), None)


def test_the_least_disturbed_stage_is_next():
    counts, every = Counts(), [("long", 1), ("long", 2), ("short", 1)]
    chosen = []
    for _ in range(6):
        stage = counts.next_stage(every)
        kinds = counts.next_kinds(*stage, FAULTS, 2)
        counts.add(*stage, kinds[0])
        counts.add(*stage, OVER)
        chosen.append((stage, kinds))
    assert [stage for stage, _ in chosen] == every * 2
    assert chosen[0][1] == list(FAULTS[:2])
    assert chosen[3][1] == list(FAULTS[1:3])
    counts.add("long", 1, FAILED)
    assert counts.next_stage(every) == ("long", 2)
    assert counts.interruptions("long", 1) == 2


def test_counts_accumulate_and_make_a_table(tmp_path):
    counts = Counts()
    counts.used("ctc", 7)
    for kind in ("kill", "kill", "full", OVER):
        counts.add("ctc", 3, kind)
    counts.add("ctc", 4, "term")
    counts.compared["ctc"], counts.seconds["ctc"] = 4, 12.3
    counts.failures.append("ctc 3 seed 7 trial 1: so")
    counts.write(tmp_path / "counts.json")
    counts = Counts.read(tmp_path / "counts.json")
    counts.used("ctc", 8)
    table = counts.table({"ctc": [3, 4], "hybrid": [1]}, ("kill", "term", "full"))
    assert table.splitlines()[2:] == [
        "| ctc | 7, 8 | 2 | 1 | 2 | 1 | 1 | 4 | 4 | 1 | 12 |",
        "| hybrid |  | 1 | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 0 |",
        "| all | | 3 | 0 | 2 | 1 | 1 | 4 | 4 | 1 | 12 |",
    ]


@pytest.fixture
def runs(tmp_path):
    """A finished run, and a copy of it."""
    reference, exp = tmp_path / "reference", tmp_path / "exp"
    (reference / "stages").mkdir(parents=True)
    (reference / "model").mkdir()
    (reference / "data").mkdir()
    (reference / "data" / "train.jsonl").write_text("from another stage")
    (reference / "words.txt").write_text("A")
    contents = {"model.safetensors": b"weights", "history.json": b"0.5 s"}
    files = {}
    for name, content in contents.items():
        (reference / "model" / name).write_bytes(content)
        files[name] = digest_bytes(content)
    model = {"digest": combined(files), "count": 2, "files": files}
    outputs = {"model": model, "words.txt": {"digest": digest_bytes(b"A"), "count": 1}}
    outputs["empty"] = {"digest": combined({}), "count": 0}
    (reference / "stages" / "03.json").write_text(json.dumps({"outputs": outputs}))
    shutil.copytree(reference, exp)
    return reference, exp


def test_equal_runs_pass_with_different_times_in_files(runs):
    assert stages(runs[0]) == [3]
    compare(*runs, 3)
    (runs[1] / "model" / "history.json").write_text("0.7 s")
    edit(runs[1], digest_bytes(b"0.5 s"), digest_bytes(b"0.7 s"))
    compare(*runs, 3)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda exp: edit(exp, digest_bytes(b"weights"), "z"), "1 files differ: model/model.saf"),
        (lambda exp: edit(exp, digest_bytes(b"A"), "z"), "1 files differ: words.txt"),
        (lambda exp: edit(exp, '"model.safetensors"', '"x.txt"'), "2 files differ"),
        (lambda exp: (exp / "model" / "model.safetensors").unlink(), "not on disk"),
        (lambda exp: (exp / "words.txt").write_text("B"), "not what the marker says"),
        (lambda exp: (exp / "model" / "history.json").write_text("1"), "not what the marker says"),
        (lambda exp: leave(exp / ".partial" / "03" / "x"), "left in .partial"),
        (lambda exp: leave(exp / "stages" / "03.publishing.json"), "left in .partial"),
    ],
)
def test_damaged_outputs_are_reported(runs, damage, message):
    damage(runs[1])
    with pytest.raises(FailedTrialError, match=message):
        compare(*runs, 3)


def test_only_files_of_other_stages_are_watched(runs):
    files = foreign_files(runs[1], 3)
    assert set(files) == {"data/train.jsonl"}
    (runs[1] / "words.txt").write_text("B")
    (runs[1] / "log.txt").write_text("x")
    assert foreign_files(runs[1], 3) == files
    (runs[1] / "data" / "train.jsonl").write_text("From another stage")
    assert foreign_files(runs[1], 3) != files


def edit(exp, old, new):
    path = exp / "stages" / "03.json"
    path.write_text(path.read_text().replace(old, new))


def leave(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
