from itertools import combinations, product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.hmm.config import TreeConfig
from toolkit.hmm.phone_sets import RootGroup
from toolkit.hmm.topology import Topology
from toolkit.hmm.tree import Split, Tree, TreeError, leaves
from toolkit.hmm.tree_growing import (
    TreeStatistics,
    automatic_questions,
    build_tree,
    log_likelihood,
    variance_floor,
)

PHONES = ("SIL", "A", "B", "C", "D", "M", "N")
TOPOLOGY = Topology(PHONES, silence_phones=("SIL",), states=2, silence_states=2)
VOWELS, NASALS = frozenset({2, 3}), frozenset({6, 7})
QUESTIONS = (frozenset({1}), VOWELS, NASALS, frozenset({4}), frozenset({2, 6}))


def synthetic_statistics(topology, mean_of, scale=0.1):
    """Two frames for each state in each context: mean_of(left, state id, right) -+ scale."""
    everyone, dimension = topology.phone_ids(), len(mean_of(1, 0, 1))
    contexts = list(product(everyone, range(topology.num_state_ids), everyone))
    means = np.array([mean_of(*context) for context in contexts], dtype=np.float32)
    statistics = TreeStatistics(dimension)
    for sign in (-scale, scale):
        statistics.accumulate(*torch.tensor(contexts).T, torch.from_numpy(means + sign))
    return statistics


def config(**values):
    return TreeConfig(**{"min_gain": 0.0, "min_frames": 1, "cluster_threshold": 0.0, **values})


def random_statistics(topology, seed=0, contexts=400, dimension=3):
    rng = np.random.default_rng(seed)
    phones = len(topology.phones)
    left, right = rng.integers(1, phones + 1, (2, contexts))
    states = rng.integers(0, topology.num_state_ids, contexts)
    effect = rng.normal(size=(2, phones + 1, dimension))
    x = states[:, None] + effect[0, left] + effect[1, right]
    x = np.repeat(x, 4, axis=0) + 0.3 * rng.normal(size=(4 * contexts, dimension))
    statistics = TreeStatistics(dimension)
    ids = [torch.tensor(np.repeat(i, 4)) for i in (left, states, right)]
    statistics.accumulate(*ids, torch.tensor(x))
    return statistics


def likelihood(tree, statistics):
    floor = variance_floor(statistics.contexts().sums)
    count, first, second = (t.numpy() for t in statistics.sum_by_pdf(tree.table()))
    return log_likelihood(np.concatenate([count[:, None], first, second], axis=1), floor).sum()


def partition(topology, label_of):
    """The contexts of all speech states, grouped by state and label."""
    groups = {}
    for left, state, right in product(
        topology.phone_ids(), range(2, topology.num_state_ids), topology.phone_ids()
    ):
        groups.setdefault((state, label_of(left, state, right)), set()).add((left, state, right))
    return {frozenset(members) for members in groups.values()}


@pytest.mark.parametrize("cluster_threshold", [0.0, None])
def test_known_contexts_are_found(cluster_threshold):
    def label(left, state, right):
        return (left in VOWELS, right in NASALS)

    def mean(left, state, right):
        after_vowel, before_nasal = label(left, state, right)
        return [10.0 * state, 3.0 * after_vowel, 2.0 * before_nasal]

    statistics = synthetic_statistics(TOPOLOGY, mean)
    limits = config(min_gain=10.0, cluster_threshold=cluster_threshold)
    tree = build_tree(statistics, TOPOLOGY, QUESTIONS, limits)
    assert tree.num_pdfs == 2 + 12 * 4  # two states of silence, twelve of speech in four contexts
    assert partition(TOPOLOGY, tree.pdf) == partition(TOPOLOGY, label)
    for root in tree.roots[2:]:
        assert (root.node.ask, root.node.phones) == ("left", VOWELS)


def test_similar_leaves_are_clustered():
    def label(left, state, right):
        return left in VOWELS or right in NASALS  # takes three leaves, two of them alike

    def mean(left, state, right):
        return [10.0 * state, 3.0 * label(left, state, right)]

    statistics = synthetic_statistics(TOPOLOGY, mean)
    unclustered = build_tree(statistics, TOPOLOGY, QUESTIONS, config(min_gain=10.0))
    assert unclustered.num_pdfs == 2 + 12 * 3
    tree = build_tree(
        statistics, TOPOLOGY, QUESTIONS, config(min_gain=10.0, cluster_threshold=None)
    )
    assert tree.num_pdfs == 2 + 12 * 2
    assert partition(TOPOLOGY, tree.pdf) == partition(TOPOLOGY, label)


def test_variants_are_split_by_questions_about_the_centre_phone():
    topology = Topology(("SIL", "A0", "A1", "A2"), silence_phones=("SIL",), states=1)
    first = topology.state_id(2, 0)

    def mean(left, state, right):
        return [5.0 * (state == first), 2.0 * (right == 1)]

    questions = (frozenset({1}), frozenset({2}), frozenset({3}))
    tree = build_tree(
        synthetic_statistics(topology, mean), topology, questions, config(min_gain=5.0)
    )
    root = tree.roots[-1]
    assert root.phones == (2, 3, 4)
    assert (root.node.ask, root.node.phones) == ("centre", frozenset({2}))
    assert {len({tree.pdf(left, state, 2) for left in range(1, 5)}) for state in range(8)} == {1}
    pdf_of_first = tree.pdf(2, first, 2)
    assert tree.pdf(2, first + 1, 2) == tree.pdf(2, first + 2, 2) != pdf_of_first


def brute_force_split(x, left, states, right, topology, questions, floor, min_frames):
    """The largest gain of a split of a root, and all splits with that gain."""
    centre = np.array(topology.phone_of_state_id)[states]
    context_phones = {"left": left, "centre": centre, "right": right}

    def fitted(rows):
        mean, variance = x[rows].mean(0), np.maximum(x[rows].var(0), floor)
        return -0.5 * (np.log(2 * np.pi * variance) + (x[rows] - mean) ** 2 / variance).sum(
            dtype=np.float64
        )

    splits = []
    for state in sorted(set(states[states >= 2].tolist())):
        in_state = states == state
        for (ask, ids), phones in product(context_phones.items(), questions):
            yes = in_state & np.isin(ids, list(phones))
            no = in_state & ~yes
            if min(yes.sum(), no.sum()) >= min_frames:
                splits.append((fitted(yes) + fitted(no) - fitted(in_state), (state, ask, phones)))
    best = max(splits, default=(0.0, None))[0]
    return best, [split for gain, split in splits if gain > best - 1e-6]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3))
def test_the_first_split_equals_brute_force(seed, min_frames):
    topology = Topology(("SIL", "A", "B", "C"), silence_phones=("SIL",), states=1, silence_states=2)
    questions = tuple(map(frozenset, [*combinations(range(1, 5), 1), *combinations([2, 3, 4], 2)]))
    rng = np.random.default_rng(seed)
    left, right = rng.integers(1, 5, (2, 30))
    states, x = rng.integers(0, 5, 30), rng.integers(-3, 4, (30, 2)).astype(np.float64)
    statistics = TreeStatistics(2)
    statistics.accumulate(*map(torch.tensor, (left, states, right, x)))
    floor = 0.01 * x.var(0)
    gain, splits = brute_force_split(x, left, states, right, topology, questions, floor, min_frames)
    tree = build_tree(statistics, topology, questions, config(max_leaves=6, min_frames=min_frames))
    roots = [root for root in tree.roots if isinstance(root.node, Split)]
    if gain < 1e-6:
        assert not roots
        return
    (root,) = roots
    assert root.node.gain == pytest.approx(gain, abs=0.06)
    state = topology.state_id(root.phones[0], 0)
    assert (state, root.node.ask, root.node.phones) in splits


def test_likelihood_rises_with_the_leaves_by_the_gains():
    topology = Topology(PHONES, silence_phones=("SIL",))
    statistics = random_statistics(topology)
    questions = automatic_questions(statistics, topology)
    roots = len(Tree.monophone(topology).roots)
    trees = [
        build_tree(statistics, topology, questions, config(max_leaves=roots + extra_leaves))
        for extra_leaves in (0, 1, 2, 5, 10, 20, 40)
    ]
    assert [tree.num_pdfs - roots for tree in trees] == [0, 1, 2, 5, 10, 20, 40]
    values = [likelihood(tree, statistics) for tree in trees]
    assert values == sorted(values)

    def gains(node):
        return node.gain + gains(node.yes) + gains(node.no) if isinstance(node, Split) else 0.0

    for tree, value in zip(trees, values, strict=True):
        gained = sum(gains(root.node) for root in tree.roots)
        assert gained == pytest.approx(value - values[0], abs=0.1 * 41)
    assert trees[0].table().tolist() == Tree.monophone(topology).table().tolist()


@pytest.mark.parametrize("threshold", [0.0, 20.0, 60.0, None, 1e9])
def test_clustering_stops_at_its_threshold(threshold):
    topology = Topology(PHONES, silence_phones=("SIL",))
    statistics = random_statistics(topology)
    questions = automatic_questions(statistics, topology)
    limits = {"max_leaves": 60, "min_gain": 10.0, "min_frames": 4}
    unclustered = build_tree(statistics, topology, questions, config(**limits))
    tree = build_tree(
        statistics, topology, questions, config(**limits, cluster_threshold=threshold)
    )
    floor = variance_floor(statistics.contexts().sums)
    sums = torch.cat(
        [t.view(tree.num_pdfs, -1) for t in statistics.sum_by_pdf(tree.table())], 1
    ).numpy()
    if threshold is None:
        splits = [root.node for root in unclustered.roots if isinstance(root.node, Split)]
        gains = []
        while splits:
            node = splits.pop()
            gains.append(node.gain)
            splits += [child for child in (node.yes, node.no) if isinstance(child, Split)]
        threshold = min(gains) - 0.1
    for root in tree.roots:
        pdfs = sorted({leaf.pdf for leaf in leaves(root.node)})
        assert pdfs == list(range(pdfs[0], pdfs[-1] + 1))
        for a, b in combinations(pdfs, 2):
            loss = log_likelihood(sums[[a, b]], floor).sum() - log_likelihood(
                sums[a] + sums[b], floor
            )
            assert loss >= threshold
    if threshold == 0.0:
        assert tree == unclustered
    if threshold == 1e9:
        assert tree.num_pdfs == len(tree.roots)


def test_states_and_silence_keep_their_pdfs_to_themselves():
    symbols = ("SIL", "SPN", "A0", "A1", "B_B", "B_E", "C")
    topology = Topology(symbols)
    statistics = random_statistics(topology, contexts=900)
    questions = automatic_questions(statistics, topology)
    tree = build_tree(statistics, topology, questions, config(cluster_threshold=None))
    owners = {}
    for phone in topology.phone_ids():
        for state in range(topology.num_states(phone)):
            row = tree.table()[topology.state_id(phone, state)]
            if phone <= 2:
                assert len(row.unique()) == 1
            for pdf in row.unique().tolist():
                owners.setdefault(pdf, set()).add((state, phone <= 2 and phone))
    assert {len(owner) for owner in owners.values()} == {1}
    assert any(isinstance(root.node, Split) for root in tree.roots)


def test_a_side_of_a_split_has_enough_frames():
    topology = Topology(PHONES, silence_phones=("SIL",))
    statistics = random_statistics(topology)
    questions = automatic_questions(statistics, topology)
    tree = build_tree(statistics, topology, questions, config(min_frames=20))
    frames = [
        leaf.frames
        for root in tree.roots
        if isinstance(root.node, Split)
        for leaf in leaves(root.node)
    ]
    assert 20 <= min(frames) < 40
    assert sum(leaf.frames for r in tree.roots for leaf in leaves(r.node)) == statistics.frames


def test_left_biphones_do_not_ask_about_the_right_phone():
    statistics = random_statistics(TOPOLOGY)
    questions = automatic_questions(statistics, TOPOLOGY)
    tree = build_tree(statistics, TOPOLOGY, questions, config(context=("left",)))
    table = tree.table()
    assert torch.equal(table, table[:, :, :1].expand_as(table))
    assert tree.num_pdfs > TOPOLOGY.num_state_ids


def test_explicit_roots_are_used():
    statistics = random_statistics(TOPOLOGY)
    roots = [
        RootGroup((4, 5), False),
        RootGroup((1,), False),
        RootGroup((2, 3), True),
        RootGroup((6, 7), True),
    ]
    questions = automatic_questions(statistics, TOPOLOGY)
    tree = build_tree(statistics, TOPOLOGY, questions, config(), roots)
    assert [root.phones for root in tree.roots[::2]] == [(1,), (2, 3), (4, 5), (6, 7)]
    assert torch.equal(tree.table()[6:8], tree.table()[8:10])
    assert len(tree.table()[6].unique()) == 1
    assert not torch.equal(tree.table()[2], tree.table()[4])
    with pytest.raises(ValueError, match="mix silence and speech"):
        build_tree(statistics, TOPOLOGY, questions, config(), [RootGroup((1, 2), True)])
    with pytest.raises(TreeError, match="no root for D M N"):
        build_tree(statistics, TOPOLOGY, questions, config(), [*roots[1:3], RootGroup((4,), True)])


def test_tree_does_not_depend_on_the_order_of_frames():
    generator = torch.Generator().manual_seed(1)
    left, right = torch.randint(1, 8, (2, 600), generator=generator)
    states = torch.randint(0, 14, (600,), generator=generator)
    x = torch.randint(-9, 9, (600, 2), generator=generator).float()
    trees = []
    for order in (torch.arange(600), torch.randperm(600, generator=generator)):
        statistics = TreeStatistics(2)
        statistics.accumulate(left[order], states[order], right[order], x[order])
        questions = automatic_questions(statistics, TOPOLOGY)
        trees.append(build_tree(statistics, TOPOLOGY, questions, config(max_leaves=80)))
    assert trees[0] == trees[1]
    assert trees[0].num_pdfs == 80


def test_low_rate_topology_and_unseen_phones_have_pdfs():
    topology = TOPOLOGY.at_low_rate()
    ids = torch.full((10,), 2)
    statistics = TreeStatistics(1)
    statistics.accumulate(ids, topology.first_state_ids[2] + ids % 2, ids, torch.randn(10, 1))
    tree = build_tree(statistics, topology, QUESTIONS, config())
    assert torch.equal(tree.table(), Tree.monophone(topology).table())
    assert [leaf.frames for r in tree.roots[4:6] for leaf in leaves(r.node)] == [10, 0]


def test_statistics_without_frames_are_an_error():
    with pytest.raises(TreeError, match="no frames"):
        build_tree(TreeStatistics(2), TOPOLOGY, QUESTIONS, TreeConfig())


@pytest.mark.parametrize(
    "values",
    [{"max_leaves": 0}, {"min_frames": 0}, {"min_gain": -1.0}, {"cluster_threshold": -1.0}],
)
def test_limits_are_checked(values):
    with pytest.raises(ValueError, match="must"):
        TreeConfig(**values)
    with pytest.raises(ValueError, match="context"):
        TreeConfig(context=("left", "centre"))
