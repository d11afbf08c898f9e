"""Monophone training from a flat start on speech drawn from known Gaussians."""

import json
from dataclasses import replace

import torch

from toolkit.align.config import EmConfig, MonophoneConfig
from toolkit.align.em import partition_utterances, training_data
from toolkit.hmm.topology import Topology


def test_the_means_are_found_from_a_flat_start(training, speech):
    system = training.system("mono")
    frames = torch.cat([system.features.store.load(u) for u in speech.states])
    names = ("SIL", "A", "B")  # X and Y have the same mean
    estimated, expected = [], []
    for name in names:
        phone = speech.phones[name]
        count = speech.topology.num_states(phone)
        states = [speech.topology.state_id(phone, state) for state in range(count)]
        phone_gaussians = torch.isin(system.gmm.owner, system.senones.table[states].unique())
        weights = system.gmm.weights[phone_gaussians, None]
        estimated.append((weights * system.gmm.means[phone_gaussians]).sum(0)[:3] / count)
        expected.append(torch.tensor(speech.mean("SIL", name, 1)) - frames.mean(0))
    distances = torch.cdist(torch.stack(estimated), torch.stack(expected))
    assert distances.argmin(1).tolist() == [0, 1, 2]
    assert distances.diagonal().max() < 2.5  # their own places are 8 apart


def test_the_alignment_is_found_from_a_flat_start(training, speech, tmp_path):
    partitions = partition_utterances(speech.transcripts, tmp_path)
    with training_data(partitions, speech.lang, EmConfig(), jobs=1) as data:
        assert data.flat_start_alignment(training.system("mono").features, speech.topology) == []
        flat = [p.load() for p in partitions]
        assert data.realign(training.system("mono")) == []
        realigned = [p.load() for p in partitions]

    def frame_accuracy(aligned):
        phones = torch.tensor(speech.topology.phone_of_state_id)
        pairs = [(phones[x], phones[speech.states[u]]) for part in aligned for u, x in part.items()]
        return float(torch.cat([a == b for a, b in pairs]).float().mean())

    assert frame_accuracy(flat) < 0.7
    assert frame_accuracy(realigned) > 0.85  # measured: 0.62 and 0.91


def test_likelihood_and_gaussians_grow(training, speech):
    history = json.loads((training.root / "mono/history.json").read_text())
    config = training.configs["mono"].em
    assert [row["iteration"] for row in history] == [*range(1, config.iterations + 1)]
    assert {row["frames"] for row in history} == {sum(map(len, speech.states.values()))}
    likelihoods = [row["log_likelihood_per_frame"] for row in history]
    assert likelihoods[-1] > likelihoods[1] > likelihoods[0]
    gaussians = [row["gaussians"] for row in history]
    assert gaussians == sorted(gaussians)
    assert 22 < gaussians[-1] <= config.gaussians
    assert gaussians[config.grow_until :] == [gaussians[-1]] * 3
    assert training.headlines["mono"] == {
        "log_likelihood_per_frame": round(likelihoods[-1], 3),
        "pdfs": 5 + 5 + 4 * 3,
        "gaussians": gaussians[-1],
        "removed": 0,
    }
    topology = Topology.load(training.root / "mono/topology.json")
    assert topology == Topology(("SIL", "SPN", "A", "B", "X", "Y"))


def test_the_shortest_utterances_are_chosen(training, speech, tmp_path):
    config = MonophoneConfig(
        EmConfig(iterations=2, realign=(1,), gaussians=30, grow_until=1), max_utterances=12
    )
    training("mono", tmp_path, config=config)
    ranked = sorted(speech.transcripts, key=lambda u: (len(speech.transcripts[u]), u))
    frames = sum(len(speech.states[u]) for u in ranked[:12])
    history = json.loads((tmp_path / "history.json").read_text())
    assert {row["frames"] for row in history} == {frames}


def test_starved_gaussians_are_removed_and_counted(training, tmp_path):
    config = training.configs["mono"]
    greedy = replace(config.em, gaussians=400, min_occupancy=4.0)
    headline = training("mono", tmp_path, config=replace(config, em=greedy))
    history = json.loads((tmp_path / "history.json").read_text())
    assert headline["removed"] == sum(row["removed"] for row in history) > 0
    system = training.system("mono", tmp_path)
    assert headline["gaussians"] == system.gmm.num_gaussians
