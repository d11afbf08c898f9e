"""The path of a GPU's scores, run on the CPU: a scorer treats `cpu:0` like a GPU."""

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
    """The score of an utterance is its number; the sizes of requested batches are recorded."""

    def __init__(self, device):
        self.device, self.batch_sizes, self.threads = device, [], set()
        self.store = SimpleNamespace(
            path=Path("dev"), num_frames=lambda name: 10, shards=[IDS[:40], IDS[40:]], ids=IDS
        )

    def log_likelihoods(self, utterance):
        return self.batch_log_likelihoods([utterance])[0]

    def batch_log_likelihoods(self, utterances):
        self.batch_sizes.append(len(utterances))
        self.threads.add(threading.current_thread())
        return [torch.tensor([[float(name[1:])]]) for name in utterances]


def name_and_score(scored):
    return scored.utterance, scored.log_likelihoods.item()


@pytest.mark.parametrize(("device", "threads"), [("cpu", 1), ("cpu:0", 1), ("cpu:0", 4)])
def test_utterances_come_in_order_with_their_scores(device, threads):
    scorer = Scorer(device)
    results = list(map_utterances(name_and_score, scorer, IDS, threads))
    assert results == [(name, float(name[1:])) for name in IDS]
    if device == "cpu":
        assert scorer.batch_sizes == [1] * 70
        assert scorer.threads == {threading.current_thread()}
    else:
        assert scorer.batch_sizes == [32, 32, 6]
        assert threading.current_thread() not in scorer.threads
    assert list(map_utterances(name_and_score, scorer, [], threads)) == []


def test_searches_run_in_as_many_threads_as_asked_for():
    barrier = threading.Barrier(4, timeout=10)  # breaks if fewer come

    def search(scored):
        barrier.wait()
        return scored.utterance

    assert list(map_utterances(search, Scorer("cpu:0"), IDS[:40], 4)) == IDS[:40]


def test_the_scorer_is_at_most_two_batches_ahead():
    scorer = Scorer("cpu:0")
    results = map_utterances(name_and_score, scorer, IDS * 10, 1)
    next(results)
    assert sum(scorer.batch_sizes) <= 32 * (1 + BATCHES_AHEAD)
    results.close()


def score_shard(scorer, threads, shard):
    index, ids = shard
    return index, threads, list(map_utterances(name_and_score, scorer, ids, threads))


@pytest.mark.parametrize(("device", "threads"), [("cpu", 1), ("cpu:0", 3)])
def test_jobs_are_processes_on_the_cpu_and_threads_beside_a_gpu(device, threads):
    jobs = 1 if device == "cpu" else 3
    results = list(map_scored_shards(score_shard, Scorer(device), jobs, "test"))
    assert [(index, count) for index, count, _ in results] == [(0, threads), (1, threads)]
    assert [name for *_, pairs in results for name, _ in pairs] == IDS


@given(st.lists(st.integers(0, 30_000), max_size=200))
def test_batches_cover_all_utterances_within_the_limits(lengths):
    batches = batches_in_order(lengths)
    assert [row for rows in batches for row in range(len(lengths))[rows]] == list(
        range(len(lengths))
    )
    for rows in batches:
        size = rows.stop - rows.start
        assert 1 <= size <= BATCH
        assert size == 1 or size * max(lengths[rows]) <= BATCH_FRAMES
    for first, second in pairwise(batches):
        joined = lengths[first.start : second.start + 1]
        assert len(joined) > BATCH or len(joined) * max(joined) > BATCH_FRAMES
