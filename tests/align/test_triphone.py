"""Triphones against monophones on speech that only context makes intelligible."""

import itertools
from dataclasses import replace

import pytest
import torch

from toolkit.align.config import AlignConfig, EmConfig
from toolkit.align.em import accumulate_gmm, partition_utterances, training_data
from toolkit.align.force_align import TranscriptGraphs, force_align
from toolkit.lang.lang import Lang

SWAPPED = {"AX": "AY", "AY": "AX", "BX": "BY", "BY": "BX"}


@pytest.fixture(scope="module")
def held_out(draw):
    return draw(utterances=4, seed=1)


def word_error_share(system, held_out):
    """The share of words whose swap of X and Y makes the transcript likelier."""
    compiler = TranscriptGraphs(Lang.load(held_out.lang), system.senones)
    wrong = total = 0
    for utterance, words in held_out.transcripts.items():
        changed = [[*words[:i], SWAPPED[w], *words[i + 1 :]] for i, w in enumerate(words)]
        graphs = [compiler.compile(choice) for choice in (words, *changed)]
        x = system.features.load(utterance)
        scores = [system.gmm.log_likelihoods(x, graph.pdfs) for graph in graphs]
        correct, *alternatives = force_align(scores, graphs, system.senones, AlignConfig())
        wrong += sum(alternative.score >= correct.score for alternative in alternatives)
        total += len(words)
    return wrong / total


def test_context_distinguishes_words_that_monophones_confuse(training, held_out):
    share = {
        n: word_error_share(training.system(n, cepstra=held_out.cepstra), held_out)
        for n in training.names
    }
    assert share["mono"] > 0.15  # measured: 0.25, for deltas tell a little of the context
    assert max(share["tri"], share["lda_mllt"], share["sat"]) < 0.02  # measured: 0


def test_unseen_frames_are_likelier_than_under_monophones_of_as_many_gaussians(
    training, held_out, tmp_path
):
    config = training.configs["mono"]
    size = training.headlines["tri"]["gaussians"]
    em = EmConfig(iterations=10, realign=(1, 2, 3, 5, 7), gaussians=size, grow_until=7)
    training("mono", tmp_path, config=type(config)(em))
    log_likelihoods = {}
    partitions = partition_utterances(held_out.transcripts, tmp_path)
    with training_data(partitions, held_out.lang, em, jobs=1) as data:
        for name, folder in (("mono", tmp_path), ("tri", training.root / "tri")):
            system = training.system(name, folder, held_out.cepstra)
            assert data.realign(system) == []
            sums = data.accumulate(accumulate_gmm, system=system)
            log_likelihoods[name] = sums.log_likelihood / sums.frames
    assert log_likelihoods["tri"] > log_likelihoods["mono"] + 0.5  # measured: -6.46 and -7.27


def test_the_tree_asks_for_the_known_context(training, speech):
    senones = training.system("tri").senones
    a, b = speech.phones["A"], speech.phones["B"]
    for phone, state in itertools.product("XY", range(3)):
        pdfs = senones.table[speech.topology.state_id(speech.phones[phone], state)]
        assert pdfs[a, 1] != pdfs[b, 1]
    assert torch.equal(senones.table[0], senones.table[0, 1, 1].expand_as(senones.table[0]))
    assert senones.num_pdfs <= training.configs["tri"].tree.max_leaves


def test_a_tree_of_one_leaf_per_state_gives_monophones_again(training, tmp_path):

    config = training.configs["tri"]
    single = replace(config, tree=replace(config.tree, max_leaves=1))
    assert training("tri", tmp_path, config=single)["pdfs"] == training.headlines["mono"]["pdfs"]
