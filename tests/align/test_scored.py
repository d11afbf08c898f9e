"""The path of a GPU's scores, with the CPU as a device: `cpu:0` is not `cpu` to a scorer."""

import threading
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from toolkit.align.scorer import (
    BATCH,
    BATCH_FRAMES,
    BATCHES_AHEAD,
    batches_in_order,
    map_scored_shards,
    map_utterances,
)

IDS = [f"u{n}" for n in range(70)]


class Scorer:
    """The score of an utterance is its number; it remembers the batches asked for."""

    def __init__(self, device):
        self.device, self.asked, self.threads = device, [], set()
        self.store = SimpleNamespace(
            path=Path("dev"), num_frames=lambda name: 10, shards=[IDS[:40], IDS[40:]], ids=IDS
        )

    def log_likelihoods(self, utterance):
        return self.batch_log_likelihoods([utterance])[0]

    def batch_log_likelihoods(self, utterances):
        self.asked.append(len(utterances))
        self.threads.add(threading.current_thread())
        return [torch.tensor([[float(name[1:])]]) for name in utterances]


def number(found):
    return found.utterance, found.log_likelihoods.item()


@pytest.mark.parametrize(("device", "threads"), [("cpu", 1), ("cpu:0", 1), ("cpu:0", 4)])
def test_every_utterance_comes_in_order_with_its_own_scores(device, threads):
    scorer = Scorer(device)
    found = list(map_utterances(number, scorer, IDS, threads))
    assert found == [(name, float(name[1:])) for name in IDS]
    if device == "cpu":
        assert scorer.asked == [1] * 70
        assert scorer.threads == {threading.current_thread()}
    else:
        assert scorer.asked == [32, 32, 6]
        assert threading.current_thread() not in scorer.threads
    assert list(map_utterances(number, scorer, [], threads)) == []


def test_searches_run_in_as_many_threads_as_asked_for():
    together = threading.Barrier(4, timeout=10)  # breaks if fewer come

    def search(found):
        together.wait()
        return found.utterance

    assert list(map_utterances(search, Scorer("cpu:0"), IDS[:40], 4)) == IDS[:40]


def test_the_scorer_is_at_most_two_batches_ahead():
    scorer = Scorer("cpu:0")
    found = map_utterances(number, scorer, IDS * 10, 1)
    next(found)
    assert sum(scorer.asked) <= 32 * (1 + BATCHES_AHEAD)
    found.close()


def work(scorer, threads, shard):
    index, ids = shard
    return index, threads, list(map_utterances(number, scorer, ids, threads))


@pytest.mark.parametrize(("device", "threads"), [("cpu", 1), ("cpu:0", 3)])
def test_jobs_are_processes_on_the_cpu_and_threads_beside_a_gpu(device, threads):
    jobs = 1 if device == "cpu" else 3
    found = list(map_scored_shards(work, Scorer(device), jobs, "test"))
    assert [(index, count) for index, count, _ in found] == [(0, threads), (1, threads)]
    assert [name for *_, pairs in found for name, _ in pairs] == IDS


@given(st.lists(st.integers(0, 30_000), max_size=200))
def test_batches_cover_all_utterances_within_the_limits(lengths):
    made = batches_in_order(lengths)
    assert [row for rows in made for row in range(len(lengths))[rows]] == list(range(len(lengths)))
    for rows in made:
        size = rows.stop - rows.start
        assert 1 <= size <= BATCH
        assert size == 1 or size * max(lengths[rows]) <= BATCH_FRAMES
    for first, second in pairwise(made):
        joined = lengths[first.start : second.start + 1]
        assert len(joined) > BATCH or len(joined) * max(joined) > BATCH_FRAMES
