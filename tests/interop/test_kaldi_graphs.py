"""Kaldi's code, from wheels, reads exported transducers, trees and graphs."""

import json
import os
import random
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings

from tests.decode.conftest import Recogniser, Scorer
from tests.fsa.transducers import assert_scores_equal, transductions, without_labels
from tests.hmm.test_tree import TOPOLOGY, trees
from tests.kaldi.forms import pdf_of_id, read_topology, read_transitions
from tests.kaldi.test_graph import KINDS, exported
from toolkit.fsa.config import Beam
from toolkit.fsa.decoding_graph import make_lexicon
from toolkit.fsa.fst import load_fst
from toolkit.fsa.grammar import grammar_acceptor
from toolkit.fsa.lattice import best_path
from toolkit.fsa.search import search_lattice
from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology
from toolkit.hmm.tree import Tree
from toolkit.kaldi.graph import export_graph, export_likelihoods, load_graph, load_openfst
from toolkit.kaldi.model import KaldiTransitions, Transitions, topology_text, tree_text

WORKER = Path(__file__).with_name("kaldi_worker.py")
SCALE = 0.125


def needs(*packages):
    missing = [name for name in packages if find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {' '.join(missing)}")


def ask(do, **request):
    """Run a function of kaldi_worker.py and return its result."""
    result = subprocess.run(
        [sys.executable, str(WORKER)],
        input=json.dumps({"do": do, **request}),
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@needs("kaldifst")
@pytest.mark.parametrize("kind", KINDS)
def test_strings_have_the_same_costs_in_openfst(tmp_path, kind):
    lang, folder = exported(tmp_path, kind)
    grammar = grammar_acceptor(tmp_path / "lm.arpa", folder / "words.txt")
    lexicon = make_lexicon(lang, unknown=True)
    generator = random.Random(0)
    for name, transducer, symbols in (
        ("L_disambig.fst", lexicon, [0]),
        ("G.fst", grammar, [0]),
    ):
        expected = without_labels(transductions(transducer, 6), *symbols)
        strings = generator.sample(sorted(expected), min(40, len(expected)))
        extra_strings = [(read, (*written, 1)) for read, written in strings[:5]]
        extra_strings = [string for string in extra_strings if string not in expected]
        kaldi_costs = ask("costs", fst=str(folder / name), strings=[*strings, *extra_strings])
        expected_costs = [-expected[string] for string in strings]
        # Longer paths than were enumerated may read the same, and be better.
        assert all(
            cost <= expected_cost + 1e-3
            for cost, expected_cost in zip(kaldi_costs, expected_costs, strict=False)
        )
        assert kaldi_costs[: len(strings)] == pytest.approx(expected_costs, abs=1e-3)
        states, arcs, (by_input, by_output), type_and_start = ask(
            "describe", fst=str(folder / name)
        )
        assert (states, type_and_start) == (transducer.num_states - 1, ["vector", 0])
        assert arcs == (transducer.labels >= 0).sum()
        assert by_input if name == "G.fst" else by_output


@needs("kaldifst")
@pytest.mark.parametrize("kind", KINDS)
def test_kaldi_determinises_the_grammar_and_its_composition_with_the_lexicon(tmp_path, kind):
    """As validate_lang.pl asks; its other rules are in tests/kaldi."""
    _, folder = exported(tmp_path, kind)
    grammar, lexicon = str(folder / "G.fst"), str(folder / "L_disambig.fst")
    assert ask("determinizable", fst=grammar)
    assert ask("determinizable", fst=grammar, first=lexicon)


@needs("kaldifst")
def test_transducers_that_openfst_writes_are_read(tmp_path):
    _, folder = exported(tmp_path)
    expected = transductions(load_openfst(folder / "L_disambig.fst"), 6)
    copies = {kind: str(tmp_path / f"{kind}.fst") for kind in ("vector", "const")}
    ask("copy", fst=str(folder / "L_disambig.fst"), **copies)
    for file in copies.values():
        assert_scores_equal(transductions(load_openfst(file), 6), expected)


FEW = settings(
    max_examples=5,
    deadline=None,
    phases=[Phase.generate],
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
"""Each example asks a process that loads Kaldi's code."""


@needs("kaldi_hmm_gmm")
@FEW
@given(trees())
def test_transition_models_that_kaldi_writes_are_read(tmp_path, tree):
    content, pdfs, phones = ask(
        "transitions", text=topology_text(TOPOLOGY), tree=tree_text(tree, TOPOLOGY)
    )
    (tmp_path / "model").write_text(content)
    imported = KaldiTransitions.read(tmp_path / "model")
    assert imported.pdf.tolist() == pdfs
    assert imported.phone.tolist() == phones
    (tmp_path / "text").write_text(Transitions(Senones(TOPOLOGY, tree)).text())
    assert imported.state.tolist() == KaldiTransitions.read(tmp_path / "text").state.tolist()


@needs("kaldi_hmm_gmm")
@FEW
@given(trees())
def test_kaldi_makes_the_same_transition_ids_of_tree_and_topology(tree):
    assert_same_model(TOPOLOGY, tree)


@needs("kaldi_hmm_gmm")
@pytest.mark.parametrize("low_rate", [False, True])
def test_kaldi_makes_the_same_transition_ids_of_whole_topologies(low_rate):
    topology = Topology(("SIL", "SPN", "A", "B"))
    topology = topology.at_low_rate() if low_rate else topology
    assert_same_model(topology, Tree.monophone(topology))


def assert_same_model(topology, tree):
    senones = Senones(topology, tree)
    transitions = Transitions(senones)
    numbers = [0, *topology.phone_ids()]
    contexts = [
        ([left, phone, right], state)
        for phone in topology.phone_ids()
        for state in range(topology.num_states(phone))
        for left in numbers
        for right in numbers
    ]
    text, pdfs, answers = ask(
        "model", text=topology_text(topology), tree=tree_text(tree, topology), contexts=contexts
    )
    assert read_topology(topology_text(topology)).keys() == set(topology.phone_ids())
    kaldi_model, exported_model = read_transitions(text), read_transitions(transitions.text())
    assert exported_model[1] == kaldi_model[1]
    assert exported_model[2] == pytest.approx(kaldi_model[2], abs=1e-5)
    for phone, states in kaldi_model[0].items():
        assert [[to for to, _ in arcs] for arcs in states] == [
            [to for to, _ in arcs] for arcs in exported_model[0][phone]
        ]
    assert pdf_of_id(transitions).tolist() == pdfs
    silence = topology.silence
    assert answers == [
        tree.pdf(left or silence, topology.state_id(phone, state), right or silence)
        for (left, phone, right), state in contexts
    ]


class NoisyScorer(Scorer):
    """Log-likelihoods of noise with a little of the transcript."""

    def log_likelihoods(self, utterance):
        scores = super().log_likelihoods(utterance)
        generator = torch.Generator().manual_seed(len(utterance))
        noise = 20 * torch.randn(scores.shape, generator=generator)
        return scores + noise if utterance != "clear" else 20 * scores


@needs("kaldi_decoder", "kaldifst", "kaldi_native_io")
@pytest.mark.parametrize("labels", ["pdfs", "transitions"])
def test_the_kaldi_decoder_finds_the_same_words(tmp_path, labels):
    recogniser = Recogniser(tmp_path)
    texts = {"clear": "YES NO", "a": "NO", "bb": "YES YES", "ccc": "NO YES NO", "dddd": "YES"}
    scorer = NoisyScorer(texts, recogniser)
    arguments = (tmp_path / "lang", tmp_path / "lm.arpa", recogniser.senones, tmp_path / "out")
    export_graph(*arguments, labels)
    export_likelihoods(scorer, tmp_path / "out")
    columns = list(range(recogniser.senones.num_pdfs))
    if labels == "transitions":
        text = (tmp_path / "out/0.trans_mdl").read_text()
        topology, triples, _ = read_transitions(text)
        columns = [pdf for phone, state, pdf in triples for _ in topology[phone][state]]
    words_by_utterance = ask(
        "decode",
        graph=str(tmp_path / "out/HCLG.fst"),
        loglikes=str(tmp_path / "out/loglikes.scp"),
        scale=SCALE,
        columns=columns,
    )
    model = tmp_path / "out/0.trans_mdl" if labels == "transitions" else None
    imported = load_graph(tmp_path / "out/HCLG.fst", model)
    for graph in (load_fst(recogniser.graph), imported):
        for utterance in texts:
            scores = scorer.log_likelihoods(utterance) * SCALE
            lattice = search_lattice(scores, graph, Beam(200.0, 1.0, 30, 1000000))
            assert words_by_utterance[utterance] == list(best_path(lattice).words)
    words = [recogniser.lang.words[word] for word in texts["clear"].split()]
    assert words_by_utterance["clear"] == words
    assert any(
        words_by_utterance[name] != [recogniser.lang.words[word] for word in texts[name].split()]
        for name in texts
    )  # the noise matters
