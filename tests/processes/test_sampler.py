import threading
import time
from xml.etree import ElementTree

import pytest

from toolkit.processes import sampler
from toolkit.processes.flame_graph import flame_graph
from toolkit.processes.sampler import folded, sampled, unfolded
from toolkit.processes.workers import WorkerPool


def busy(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(1000))
    return seconds


def inner():
    return busy(0.3)


def in_function(stacks, name):
    return sum(t for stack, t in stacks.items() if any(f.startswith(f"{name} (") for f in stack))


def test_time_is_put_down_to_the_functions_that_take_it():
    with sampled() as stacks:
        inner()
    assert in_function(stacks, "busy") == in_function(stacks, "inner") > 0.2
    [first] = {stack[:2] for stack in stacks if "inner" in stack[1]}
    assert first[0] == "this process"
    assert first[1].startswith("inner (processes/test_sampler.py:")  # nothing of what called it


def test_threads_count_while_they_work():
    waits, ends = threading.Event(), threading.Event()
    idle = threading.Thread(target=waits.wait, name="idle")
    works = threading.Thread(target=lambda: (inner(), ends.set()), name="at work")
    with sampled() as stacks:
        idle.start()
        works.start()
        ends.wait(30)
        waits.set()
        for thread in (idle, works):
            thread.join()
    roots = {stack[1] for stack in stacks}
    assert "thread at work" in roots
    assert "thread idle" not in roots


def test_workers_leave_their_stacks():
    with sampled() as stacks, WorkerPool(2) as pool:
        assert list(pool.map(busy, [0.3, 0.3])) == [0.3, 0.3]
    workers = {stack: t for stack, t in stacks.items() if stack[0] == "workers"}
    assert in_function(workers, "busy") > 0.3
    assert sampler.VARIABLE not in sampler.os.environ


def test_stacks_come_back_from_text():
    stacks = {("a", "f (x/y.py:3)"): 0.25, ("a", "g (lambda)"): 1.5}
    assert folded(stacks) == "a;f (x/y.py:3) 250000\na;g (lambda) 1500000\n"
    assert unfolded(folded(stacks)) == pytest.approx(stacks)


def test_boxes_are_as_wide_as_their_time():
    stacks = {("main", "f", "h"): 3.0, ("main", "g <b>"): 1.0, ("main", "rare"): 0.0001}
    root = ElementTree.fromstring(flame_graph(stacks, "17 <LSTM>"))
    name = "{http://www.w3.org/2000/svg}"
    boxes = {
        group.find(f"{name}title").text.split(":")[0]: group.find(f"{name}rect")
        for group in root.iter(f"{name}g")
    }
    assert set(boxes) == {"main", "f", "h", "g <b>"}
    at = {key: (float(box.get("x")), float(box.get("width"))) for key, box in boxes.items()}
    assert at["h"] == at["f"] == pytest.approx((0, 900), abs=1)
    assert at["g <b>"] == pytest.approx((900, 300), abs=1)
    assert float(boxes["f"].get("y")) > float(boxes["main"].get("y"))
    assert "17 <LSTM>" in {text.text for text in root.iter(f"{name}text")}
    assert "0.0 s" in flame_graph({}, "nothing")
