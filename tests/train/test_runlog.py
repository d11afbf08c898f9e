import json
import threading

import pytest

from toolkit.train.errors import TrainingError
from toolkit.train.runlog import (
    Created,
    Evaluated,
    Finished,
    RunLogWriter,
    Saved,
    Sentences,
    Started,
    Step,
    Utilisation,
    read_run_log,
)


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def start_log(path, clock):
    writer = RunLogWriter(path, clock)
    writer.create(Created(parameters=5, batch=2, about={"name": "a"}))
    return writer


def test_events_come_back_as_written_with_their_time(tmp_path, clock):
    writer = start_log(tmp_path / "log.jsonl", clock)
    clock.now += 1.5
    written = [
        Step(step=1, epoch=1, loss=2.5, examples=2, seconds_in_step=1.5),
        Sentences(step=1, references=("A", "É"), hypotheses=("", "B")),
        Utilisation(cpu=(0.5, 1.0)),
        Evaluated(epoch=1, wer=20.0, cer=8.0, ser=50.0, loss=3.0),
        Finished(step=1, epochs=1),
    ]
    for event in written:
        writer.write(event)
    log = read_run_log(tmp_path)
    assert log.created == Created(0.0, 5, 2, 1, {"name": "a"})
    assert [event.seconds for event in log.events[1:]] == [1.5] * 5
    fields = [{**vars(event), "seconds": 0.0} for event in log.events[1:]]
    assert fields == [vars(event) for event in written]
    assert log.of(Step)[0].loss == 2.5
    assert log.starts == 1
    assert log.seconds == 1.5


def test_a_log_may_lack_the_usual_character_error_rate(tmp_path, clock):
    path = tmp_path / "log.jsonl"
    start_log(path, clock).write(Evaluated(cer=8.0, cer_usual=9.0))
    assert read_run_log(path).of(Evaluated)[0].cer_usual == 9.0
    path.write_text(path.read_text().replace(', "cer_usual": 9.0', ""))
    (evaluated,) = read_run_log(path).of(Evaluated)
    assert (evaluated.cer, evaluated.cer_usual) == (8.0, None)


def test_throughput_is_all_utterances_by_all_seconds(tmp_path, clock):
    writer = start_log(tmp_path / "log.jsonl", clock)
    assert read_run_log(tmp_path).examples_per_second == 0
    for seconds in (1.0, 1.0, 6.0):
        writer.write(Step(examples=4, seconds_in_step=seconds))
    log = read_run_log(tmp_path)
    assert (log.examples, log.examples_per_second) == (12, 1.5)


def test_lines_have_the_event_and_its_fields(tmp_path, clock):
    start_log(tmp_path / "log.jsonl", clock).write(Saved(step=3, epoch=1, duration=0.1))
    line = (tmp_path / "log.jsonl").read_text().splitlines()[1]
    assert json.loads(line) == {
        **{"event": "saved", "seconds": 0.0},
        **{"step": 3, "epoch": 1, "duration": 0.1},
    }


def test_a_killed_run_continues_at_its_checkpoint(tmp_path, clock):
    path = tmp_path / "log.jsonl"
    writer = start_log(path, clock)
    clock.now += 10
    writer.write(Step(step=1))
    position = writer.position()
    clock.now += 2
    writer.write(Saved(step=1))  # that checkpoint: stays
    clock.now += 5
    writer.write(Step(step=2))  # lost
    with open(path, "ab") as file:
        file.write(b'{"event": "st')
    for start in (2, 3):  # killed again before another checkpoint
        clock.now += 100  # nobody trains
        writer = RunLogWriter(path, clock)
        clock.now += 0.5  # the model is loaded
        writer.resume(position, step=1)
        clock.now += 0.5
        writer.write(Step(step=2, loss=start))
    log = read_run_log(path)
    assert [type(event) for event in log.events] == [Created, Step, Saved, Started, Step]
    assert [event.seconds for event in log.events] == [0, 10, 12, 12, 13]
    assert log.of(Step)[-1].loss == 3
    assert log.of(Started)[0].lost == 1.0
    assert log.starts == 3


def test_a_later_save_is_not_mistaken_for_this_one(tmp_path, clock):
    path = tmp_path / "log.jsonl"
    writer = start_log(path, clock)
    position = writer.position()
    clock.now += 4
    writer.write(Saved(step=2))
    RunLogWriter(path, clock).resume(position, step=1)
    assert [type(event) for event in read_run_log(path).events] == [Created, Started]
    assert read_run_log(path).of(Started)[0].lost == 4.0


@pytest.mark.parametrize("damage", [bytes(64) + b"\n", b'{"event": 1}\n', b"[]\n"])
def test_damage_behind_the_checkpoint_is_cut_off(tmp_path, clock, damage):
    path = tmp_path / "log.jsonl"
    writer = start_log(path, clock)
    position = writer.position()
    clock.now += 4
    writer.write(Step(step=2))
    with open(path, "ab") as file:
        file.write(damage)
    RunLogWriter(path, clock).resume(position, step=1)
    assert [type(event) for event in read_run_log(path).events] == [Created, Started]
    assert read_run_log(path).of(Started)[0].lost == 4.0


def test_a_run_without_a_checkpoint_begins_again(tmp_path, clock):
    start_log(tmp_path / "log.jsonl", clock).write(Step(step=1))
    start_log(tmp_path / "log.jsonl", clock)
    assert [type(event) for event in read_run_log(tmp_path).events] == [Created]


def test_a_shortened_log_is_refused(tmp_path, clock):
    path = tmp_path / "log.jsonl"
    position = start_log(path, clock).position()
    path.write_bytes(b"")
    with pytest.raises(TrainingError, match="shorter"):
        RunLogWriter(path, clock).resume(position, 0)


def test_a_running_or_newer_log_can_be_read(tmp_path, clock):
    path = tmp_path / "log.jsonl"
    start_log(path, clock)
    more = {"event": "saved", "seconds": 1.0, "step": 4, "epoch": 1, "colour": "red"}
    unknown = {"event": "moved", "seconds": 1.0}
    with open(path, "a") as file:
        file.write(json.dumps(more) + "\n" + json.dumps(unknown) + "\n" + '{"event": "save')
    log = read_run_log(path)
    assert len(log.events) == 2
    assert log.of(Saved)[0].step == 4


@pytest.mark.parametrize("content", ["[1]\n", "{}\n", "nothing\n", '{"event": "saved"}\n', ""])
def test_files_that_are_no_log_are_refused(tmp_path, content):
    (tmp_path / "log.jsonl").write_text(content)
    with pytest.raises(TrainingError, match=r"log\.jsonl"):
        read_run_log(tmp_path)
    with pytest.raises(TrainingError, match="does not exist"):
        read_run_log(tmp_path / "nowhere.jsonl")


def test_threads_do_not_mix_lines(tmp_path, clock):
    writer = start_log(tmp_path / "log.jsonl", clock)

    def write_events(number):
        for step in range(50):
            writer.write(Sentences(step=step, epoch=number, references=("x" * 5000,)))

    threads = [threading.Thread(target=write_events, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events = read_run_log(tmp_path).of(Sentences)
    for number in range(4):
        assert [e.step for e in events if e.epoch == number] == list(range(50))
