"""A recipe whose stages may run in parallel; each records its begin and end."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from toolkit.stages.recipe import Recipe


@dataclass(frozen=True)
class Config:
    first: int = 1
    second: int = 1
    networks: bool = True


recipe = Recipe("beside", Path(__file__), {"demo": Config}, "Decodes beside trainings.")
EVENTS = Path(__file__).parent / "events"


def record_event(run, event):
    EVENTS.mkdir(exist_ok=True)
    (EVENTS / f"{time.time_ns()} {run.stage} {event} {os.getpid()} {run.jobs}").touch()


def work(run, name, *input_names, value=0):
    """Begin, do what a test asks for (WAIT_3="4 begins", FAULT_3=value), read and write."""
    record_event(run, "begins")
    deadline = time.monotonic() + 60
    awaited_event = os.environ.get(f"WAIT_{run.stage}", "")
    while awaited_event and not any(awaited_event in path.name for path in EVENTS.iterdir()):
        assert time.monotonic() < deadline, awaited_event
        time.sleep(0.01)
    fault = os.environ.get(f"FAULT_{run.stage}")
    if fault == "value":
        raise ValueError("the loss is not a number")
    if fault in ("SIGKILL", "SIGTERM"):
        os.kill(os.getpid(), getattr(signal, fault))
    if fault in ("sleep", "pause"):
        time.sleep({"sleep": 60, "pause": 2}[fault])
    texts = [run.need(input_name).read_text() for input_name in input_names]
    record_event(run, "has read")
    run.make(name).write_text(f"{name} {value} ({', '.join(texts)})")
    record_event(run, "ends")
    return {"length": len(texts)}


@recipe.stage(1, "Train the first")
def train_first(run):
    return work(run, "models/first", value=run.config.first)


@recipe.stage(2, "Decode with the first", background_when="networks")
def decode_first(run):
    return work(run, "decode/first", "models/first")


@recipe.stage(3, "Decode again", background_when="networks")
def decode_again(run):
    return work(run, "decode/again", "decode/first")


@recipe.stage(4, "Train the second", when="networks")
def train_second(run):
    return work(run, "models/second", "models/first", value=run.config.second)


@recipe.stage(5, "List the results")
def results(run):
    return work(run, "results", "decode/first", "decode/again", "models/first")


if __name__ == "__main__":
    recipe.main()
