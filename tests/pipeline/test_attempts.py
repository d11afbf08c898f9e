"""Two attempts at one partition that write different bytes, in every order of their writes.

Spark starts a second attempt where the first is slow or its node is thought lost; the first may
live on.
"""

import contextlib
import itertools
import threading
from functools import partialmethod

from sample_steps import ReverseConfig

from toolkit.pipeline.config import StoreConfig
from toolkit.pipeline.local import Task, attempt
from toolkit.pipeline.markers import OBJECTS, TaskResult, all_finished, remove_leftovers
from toolkit.pipeline.objects import ObjectStore
from toolkit.pipeline.step import Partition, StepResult

NUMERIC = {"OMP_NUM_THREADS": "1"}
WRITES = 3  # two objects and the marker


class Unlike:
    """Writes two objects, of the same names and sizes, that tell which attempt has written them."""

    name = "unlike"
    config = ReverseConfig()

    def run(self, partition, store, out, resources):
        who = threading.current_thread().name.encode()
        (resources.scratch / "file").write_bytes(b"second of " + who)
        outputs = (
            store.put(f"{out}/parts/first", b"first of " + who),
            store.put_file(resources.scratch / "file", f"{out}/parts/second"),
        )
        return StepResult(outputs)


class Killed(BaseException):
    """Stands for the kill of a process: no handler catches it."""


class Turns:
    """Makes the threads `a` and `b` write in an order; one can be killed after some writes."""

    def __init__(self, order, killed="", num_writes=0):
        self.order, self.killed, self.num_writes = order, killed, num_writes
        self.position, self.writes_by_thread = 0, {"a": 0, "b": 0}
        self.changed = threading.Condition()

    def take(self, write, *arguments, **options):
        """Write when it is the thread's turn."""
        name = threading.current_thread().name
        if name not in self.writes_by_thread:
            return write(*arguments, **options)
        if name == self.killed and self.writes_by_thread[name] == self.num_writes:
            raise Killed
        with self.changed:
            assert self.changed.wait_for(lambda: self.order[self.position] == name, 60)
        try:
            return write(*arguments, **options)
        finally:
            with self.changed:
                self.writes_by_thread[name] += 1
                self.position += 1
                self.changed.notify_all()


def in_turn(store, turns, write, *arguments, **options):
    """Write an object when it is the thread's turn; replaces a method of the store."""
    return turns.take(write, store, *arguments, **options)


def orders(a, b):
    """All orders of `a` writes of one attempt and `b` of the other."""
    for places in itertools.combinations(range(a + b), a):
        yield "".join("a" if place in places else "b" for place in range(a + b))


SCHEDULES = [
    *((order, "", 0) for order in orders(WRITES, WRITES)),
    *((order, "a", k) for k in range(WRITES) for order in orders(k, WRITES)),
    *((order, "b", k) for k in range(WRITES) for order in orders(WRITES, k)),
]


def race(turns, job, folder, monkeypatch):
    """Run both attempts; returns the outcome of each that was not killed."""
    outcomes = {}

    def run():
        name = threading.current_thread().name
        with contextlib.suppress(Killed):
            outcomes[name] = attempt(job, folder / name)

    with monkeypatch.context() as patch:
        for write in ("put", "put_file", "create"):
            original = getattr(ObjectStore, write)
            patch.setattr(ObjectStore, write, partialmethod(in_turn, turns, original))
        threads = [threading.Thread(target=run, name=name) for name in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return outcomes


def check_schedules(place, folder, config, schedules, monkeypatch):
    for number, (order, killed, num_writes) in enumerate(schedules):
        out, store = f"{place}/{number}", ObjectStore(config)
        job = Task(Unlike(), Partition("p", ()), out, config, "cpu", 1, False, NUMERIC)
        outcomes = race(Turns(order, killed, num_writes), job, folder / str(number), monkeypatch)
        schedule = (order, killed, num_writes)
        assert set(outcomes) == set("ab") - {killed}, schedule
        markers, _ = all_finished(job.step, [job.partition], out, config, NUMERIC)
        result = markers["p"].result
        contents = [store.get(ref) for ref in result.outputs]  # with the digests of the marker
        assert contents in ([b"first of a", b"second of a"], [b"first of b", b"second of b"]), (
            schedule
        )
        for outcome in outcomes.values():
            assert isinstance(outcome, TaskResult)
            assert outcome.result == result, schedule
        remove_leftovers(store, job.step, [job.partition], out, [result], NUMERIC)
        remaining = [ref.path for ref in store.list(f"{out}/{OBJECTS}")]
        assert sorted(remaining) == sorted(ref.path for ref in result.outputs), schedule
        assert [store.get(ref) for ref in result.outputs] == contents


def test_the_marker_names_the_objects_of_one_attempt_on_a_disk(tmp_path, monkeypatch):
    check_schedules(str(tmp_path / "out"), tmp_path, StoreConfig(), SCHEDULES, monkeypatch)


def test_the_marker_names_the_objects_of_one_attempt_on_s3(s3, tmp_path, monkeypatch):
    check_schedules(s3.base, tmp_path, s3.config, SCHEDULES, monkeypatch)
