"""What the training of all GMM systems has in common, on speech drawn from known Gaussians."""

import itertools
import json
import os
import random
from dataclasses import replace

import pytest
import torch

from toolkit.align import em as em_training
from toolkit.align.config import AlignConfig, EmConfig
from toolkit.align.em import UnalignableError, accumulate_gmm, partition_utterances, training_data
from toolkit.processes.workers import WorkerPool
from toolkit.startup import BLAS_VARIABLE

SYSTEMS = ("mono", "tri", "lda_mllt", "sat")
TRAINED = {
    "mono": {"features.json", "fmllr.safetensors", "gmm.safetensors", "history.json"}
    | {"topology.json", "tree.json"}
}
TRAINED["tri"] = TRAINED["mono"]
TRAINED["lda_mllt"] = TRAINED["sat"] = TRAINED["mono"] | {"projection.safetensors"}


def file_contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def two_processes():
    with pytest.MonkeyPatch.context() as patch:
        if BLAS_VARIABLE not in os.environ:  # torch came first: do not tune workers
            patch.setenv(BLAS_VARIABLE, "")
        with WorkerPool(2) as pool:
            yield pool


class SharedPool:
    """Lends one pool to several trainings: starting processes takes longer than these do."""

    def __init__(self, pool):
        self.pool = pool

    def __enter__(self):
        return self.pool

    def __exit__(self, *error):
        pass


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_result_does_not_depend_on_jobs(training, two_processes, name, tmp_path, monkeypatch):
    pool_sizes = []
    monkeypatch.setattr(
        em_training, "WorkerPool", lambda jobs: pool_sizes.append(jobs) or SharedPool(two_processes)
    )
    headline = training(name, tmp_path, jobs=2)
    assert pool_sizes == [2]
    assert headline == training.headlines[name]
    assert file_contents(tmp_path) == file_contents(training.root / name)


class Killer:
    """Kills a training at the n-th item that its worker pool maps."""

    def __init__(self, monkeypatch):
        self.remaining, self.kind, self.map = None, None, WorkerPool.map
        monkeypatch.setattr(WorkerPool, "map", lambda *a: self.map_counted(*a))

    def map_counted(self, pool, function, items):
        def count(item):
            if self.remaining is not None and self.kind in (None, function.func.__name__):
                if not self.remaining:
                    self.remaining = None
                    raise KeyboardInterrupt
                self.remaining -= 1
            return function(item)

        return self.map(pool, count, items)

    def arm(self, item, kind=None):
        self.remaining, self.kind = item, kind


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_killed_training_continues_to_the_same_bytes(training, name, tmp_path, monkeypatch):
    killer, dice = Killer(monkeypatch), random.Random(name)
    for item in (dice.randint(33, 45), dice.randint(0, 15), dice.randint(0, 15)):
        killer.arm(item)
        with pytest.raises(KeyboardInterrupt):
            training(name, tmp_path)
    progress = []
    headline = training(name, tmp_path, progress=lambda *counts: progress.append(counts))
    iterations = training.configs[name].em.iterations
    assert progress == [(i, iterations) for i in range(progress[0][0], iterations + 1)]
    assert progress[0][0] > 1  # what was finished has not been done again
    assert headline == training.headlines[name]
    assert file_contents(tmp_path) == file_contents(training.root / name)


@pytest.mark.parametrize(
    ("kind", "item"),
    [("_realign", 12), ("_realign", 15), ("accumulate_mllt", 5), ("accumulate_fmllr", 11)],
)
def test_killed_within_an_iteration_that_aligns_and_transforms(
    training, kind, item, tmp_path, monkeypatch
):
    """Iteration 2 does both, and some alignments on disk are then ahead of the model."""
    name = "lda_mllt" if kind == "accumulate_mllt" else "sat"
    killer = Killer(monkeypatch)
    killer.arm(item, kind)
    with pytest.raises(KeyboardInterrupt):
        training(name, tmp_path)
    assert (tmp_path / "checkpoint.safetensors").exists()
    training(name, tmp_path)
    assert file_contents(tmp_path) == file_contents(training.root / name)


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_finished_training_leaves_the_system_and_nothing_else(training, name):
    assert {path.name for path in (training.root / name).iterdir()} == TRAINED[name]


@pytest.mark.parametrize("name", ["mono", "tri", "sat"])
def test_neither_em_nor_realignment_lowers_the_likelihood(training, speech, name, tmp_path):
    """As long as there are as many Gaussians, none starves and no variance is at its floor."""
    partitions = partition_utterances(speech.transcripts, tmp_path)
    exact = EmConfig(align=AlignConfig(acoustic_scale=1.0, beam=10_000.0, max_active=100_000))
    with training_data(partitions, speech.lang, exact, jobs=1) as data:
        system, floor = training.system(name), torch.tensor(1e-4)
        occupied = torch.ones(system.gmm.num_pdfs)
        system = system.with_gmm(system.gmm.split(2 * system.gmm.num_gaussians, occupied))
        log_likelihoods = []
        for step in range(9):
            if step % 3 == 0:
                assert data.realign(system) == []
            sums = data.accumulate(accumulate_gmm, system=system)
            assert sums.frames == sum(map(len, speech.states.values()))
            log_likelihoods.append(sums.log_likelihood / sums.frames)
            system = system.with_gmm(system.gmm.maximise(sums, 1.0, floor))
    gains = [b - a for a, b in itertools.pairwise(log_likelihoods)]
    assert all(gain > -1e-5 for gain in gains)
    assert log_likelihoods[-1] > log_likelihoods[0] + 0.1


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_partition_without_alignments_is_no_error(training, draw, name, tmp_path):
    first = [f"anna-{number:02d}" for number in range(4)]
    damaged = draw(truncated=first)
    assert [
        u for u, _ in partition_utterances(damaged.transcripts, tmp_path)[0].transcripts
    ] == first
    training(name, tmp_path, cepstra=damaged.cepstra)
    frames = sum(len(states) for u, states in damaged.states.items() if u not in first)
    history = json.loads((tmp_path / "history.json").read_text())
    assert {row["frames"] for row in history} == {frames}


@pytest.mark.parametrize("name", SYSTEMS)
def test_too_many_failures_are_an_error_that_names_them(training, draw, name, tmp_path):
    truncated = [f"bert-{number:02d}" for number in range(12)]
    damaged = draw(truncated=truncated)
    with pytest.raises(
        UnalignableError, match=r"12 of 36 .* such as bert-00, bert-01, .*-04\. Check "
    ):
        training(name, tmp_path, cepstra=damaged.cepstra)
    config = training.configs[name]
    tolerant = replace(config, em=replace(config.em, max_failed=0.4))
    training(name, tmp_path, cepstra=damaged.cepstra, config=tolerant)


def test_partitions_are_contiguous_whatever_their_number(tmp_path):
    for count, shares in ((3, 3), (8, 8), (100, 8), (4001, 9)):
        transcripts = {f"u{i}": ["A"] * (i % 3) for i in range(count)}
        partitions = partition_utterances(transcripts, tmp_path)
        assert len(partitions) == shares
        assert dict(pair for p in partitions for pair in p.transcripts) == {
            u: tuple(words) for u, words in transcripts.items()
        }
        sizes = {len(p.transcripts) for p in partitions}
        assert max(sizes) - min(sizes) <= 1
        assert len({p.alignments for p in partitions}) == shares


@pytest.mark.parametrize("grow_until", [0, 36])
def test_gaussians_cannot_grow_after_the_last_iteration(grow_until):
    with pytest.raises(ValueError, match="grow_until"):
        EmConfig(iterations=35, grow_until=grow_until)
