"""Low-rate senones; their targets are checked phone by phone."""

import itertools

import pytest
import torch

from toolkit.align.store import AlignmentStore, LowRateAlignments, Outcome, write_shard
from toolkit.align.train_gmm import build_low_rate_senones
from toolkit.features.shards import FeatureStore
from toolkit.hmm.config import TreeConfig
from toolkit.hmm.senones import Senones
from toolkit.hmm.tree import Tree

CONFIG = TreeConfig(max_leaves=24, min_gain=30.0, min_frames=20)
LOST = "anna-04"


@pytest.fixture(scope="module")
def alignments(speech, tmp_path_factory):
    """The true alignments as an alignment store in which one utterance failed."""
    folder = tmp_path_factory.mktemp("ali")
    for number, ids in enumerate(FeatureStore(speech.cepstra).shards):
        states = {u: speech.states[u] for u in ids if u != LOST}
        outcomes = [Outcome(u, "ok", -1.0, 10.0, "") for u in ids]
        write_shard(folder / f"ali.{number:06d}.tar", states, outcomes)
    return folder


@pytest.fixture(scope="module")
def low_rate_senones(training, speech, alignments, tmp_path_factory):
    out = tmp_path_factory.mktemp("senones")
    facts = build_low_rate_senones(
        training.root / "sat", speech.cepstra, alignments, CONFIG, out, jobs=1
    )
    return out, facts


def expected_targets(topology, tree, states):
    """The senone of each 10 ms frame, from its phone, its place in it and the tree."""
    owner = topology.phone_of_state_id
    phones = []  # [phone, frames], a new one at each way back to an earlier state of speech
    for last, state in itertools.pairwise([-1, *states.tolist()]):
        silent = last >= 0 and owner[last] == owner[state] == topology.silence
        if last < 0 or owner[last] != owner[state] or (state < last and not silent):
            phones.append([owner[state], 0])
        phones[-1][1] += 1
    names = [topology.silence, *(phone for phone, _ in phones), topology.silence]
    targets = []
    for i, (phone, frames) in enumerate(phones):
        for k in range(frames):
            state = 2 * (phone - 1) + (0 if k < 3 else 1)
            targets.append(tree.pdf(names[i], state, names[i + 2]))
    return targets


def test_targets_are_the_trees_senones(low_rate_senones, speech, alignments):
    out, facts = low_rate_senones
    tree, senones = Tree.load(out / "tree.json"), Senones.load(out)
    assert facts["senones"] == senones.num_pdfs == tree.num_pdfs
    assert 12 < tree.num_pdfs <= CONFIG.max_leaves
    targets = LowRateAlignments(AlignmentStore(alignments), speech.topology, senones)
    assert sorted(targets.ids) == sorted(speech.states.keys() - {LOST})
    used_senones = set()
    for utterance in targets.ids:
        utterance_targets = targets.load(utterance).tolist()
        assert utterance_targets == expected_targets(
            speech.topology, tree, speech.states[utterance]
        )
        used_senones |= {*utterance_targets}
    silent = {0, 1, 2, 3}  # silence is not split, and noise never heard
    assert used_senones | silent == {*range(tree.num_pdfs)}


def test_the_low_rate_tree_asks_for_the_known_context(low_rate_senones, speech):
    out, _ = low_rate_senones
    senones = Senones.load(out)
    assert senones.topology == speech.topology.at_low_rate()
    a, b = speech.phones["A"], speech.phones["B"]
    for phone in "XY":
        for state in range(2):
            pdfs = senones.table[senones.topology.state_id(speech.phones[phone], state)]
            assert pdfs[a, 1] != pdfs[b, 1]


def test_contexts_are_counted_once_for_all_shards(low_rate_senones, speech, alignments):
    topology, contexts = speech.topology, set()
    targets = torch.cat([speech.states[u] for u in AlignmentStore(alignments).ids])
    assert len(targets) == sum(len(s) for u, s in speech.states.items() if u != LOST)
    for utterance in AlignmentStore(alignments).ids:
        states = speech.states[utterance]
        starts = topology.phone_starts(states).nonzero()[:, 0].tolist()
        owner = [topology.phone_of_state_id[s] for s in states[starts].tolist()]
        lengths = [b - a for a, b in itertools.pairwise([*starts, len(states)])]
        around = [topology.silence, *owner, topology.silence]
        for i, (phone, frames) in enumerate(zip(owner, lengths, strict=True)):
            onsets = (0, 1) if frames > 3 else (0,)
            contexts |= {(around[i], phone, s, around[i + 2]) for s in onsets}
    assert low_rate_senones[1]["contexts"] == len(contexts)


def test_the_tree_does_not_depend_on_jobs(low_rate_senones, training, speech, alignments, tmp_path):
    facts = build_low_rate_senones(
        training.root / "sat", speech.cepstra, alignments, CONFIG, tmp_path, jobs=2
    )
    assert facts == low_rate_senones[1]
    for name in ("topology.json", "tree.json"):
        assert (tmp_path / name).read_bytes() == (low_rate_senones[0] / name).read_bytes()
