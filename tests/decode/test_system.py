"""Decoding a store of made-up scores with a graph of two words."""

import json
from dataclasses import replace

import pytest
import torch

pytest.importorskip("k2")
pytest.importorskip("kaldilm")

from lhotse.testing.dummies import dummy_recording

from toolkit.corpus.manifest import make_cut
from toolkit.decode.first_pass import DecodeConfig, decode_store, real_time_factor
from toolkit.decode.graph import make_decoding_graph
from toolkit.decode.system import decode_system
from toolkit.fsa.lattice import Weights
from toolkit.fsa.search import Beam
from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology
from toolkit.lang.arpa import write_arpa
from toolkit.lang.lang import Lang
from toolkit.lang.lexicon import Lexicon
from toolkit.lang.ngram import estimate

LANG = Lang.of(Lexicon({"YES": [("Y", "EH", "S")], "NO": [("N", "OW")]}))
TOPOLOGY = Topology(tuple(LANG.real_phones), states=2, silence_states=1)
SENONES = Senones.monophone(TOPOLOGY)
CONFIG = DecodeConfig(
    acoustic_scale=1.0, scales=(0.5, 1.0), penalties=(-200.0, 0.0), beam=Beam(1000.0, 1000.0)
)


class Store:
    def __init__(self, texts):
        self.texts = texts
        ids = list(texts)
        self.shards = [ids[:2], ids[2:]]
        self.ids = ids

    def cut(self, utterance):
        return make_cut(utterance, dummy_recording(0), self.texts[utterance], "speaker")


class PerfectScorer:
    """Certain of each state of the transcript; an utterance named "mumble" has no frame."""

    frame_shift = 0.01

    def __init__(self, texts):
        self.store = Store(texts)

    def log_likelihoods(self, utterance, pdfs=None):
        phones = [1]
        for word in self.store.texts[utterance].split():
            phones += [*LANG.pronunciation_ids(word)[0], 1]
        states = [
            TOPOLOGY.state_id(p, s)
            for p in phones
            for s in range(TOPOLOGY.num_states(p))
            for _ in "ab"
        ]
        if utterance == "mumble":
            states = []
        scores = torch.full((len(states), SENONES.num_pdfs), -10.0)
        scores[range(len(states)), states] = 0.0
        return scores if pdfs is None else scores[:, pdfs]


@pytest.fixture
def graph(tmp_path):
    LANG.save(tmp_path / "lang")
    model, _ = estimate([["YES"], ["NO"], ["YES", "NO"], ["NO", "NO"]], LANG.vocabulary, 2, (1,))
    write_arpa(model, tmp_path / "lm.arpa")
    path = tmp_path / "graph.safetensors"
    sizes = make_decoding_graph(tmp_path / "lang", tmp_path / "lm.arpa", SENONES, path)
    assert sizes["arcs"] > 20
    return path


TEXTS = {"a1": "YES NO", "a2": "NO", "b1": "NO YES YES", "b2": "YES"}


def test_certain_scores_give_the_transcripts(graph, tmp_path):
    decoded = decode_store(
        PerfectScorer(TEXTS),
        graph,
        tmp_path / "lang/words.txt",
        [Weights(1.0, 0.0), Weights(1.0, -100.0)],
        CONFIG,
        tmp_path,
        jobs=1,
    )
    assert {d.utterance: d.hypotheses[0] for d in decoded} == TEXTS
    assert all(len(d.hypotheses[1].split()) <= len(d.hypotheses[0].split()) for d in decoded)
    assert real_time_factor(decoded) > 0


def test_an_impossible_utterance_still_gets_a_line(graph, tmp_path):
    texts = {**TEXTS, "mumble": "YES"}
    decoded = decode_store(
        PerfectScorer(texts),
        graph,
        tmp_path / "lang/words.txt",
        [Weights(1.0, 0.0)],
        CONFIG,
        tmp_path,
        jobs=1,
    )
    mumbled = decoded[-1]
    assert (mumbled.utterance, mumbled.hypotheses, mumbled.beam) == ("mumble", ("",), 0.0)


def test_finished_shards_are_kept(graph, tmp_path):
    (tmp_path / "decoded.000000.jsonl").write_text(
        '{"utterance": "kept", "audio_seconds": 1.0, "decode_seconds": 0.5, "beam": 1.0,'
        ' "hypotheses": ["FROM BEFORE"]}\n'
    )
    scorer = PerfectScorer(TEXTS)
    words = tmp_path / "lang/words.txt"
    decoded = decode_store(scorer, graph, words, [Weights(1.0)], CONFIG, tmp_path, jobs=1)
    assert [d.utterance for d in decoded] == ["kept", "b1", "b2"]


def test_among_equals_the_smallest_penalty_is_chosen(graph, tmp_path):
    config = replace(CONFIG, scales=(1.0, 2.0), penalties=(-0.2, -0.1, 0.1))
    scorers, out = {"dev": PerfectScorer(TEXTS)}, tmp_path / "out"
    words = tmp_path / "lang/words.txt"
    decode_system("made-up", scorers, ["dev"], graph, words, "2gram", config, out, 1, "./run.py")
    grid = [line.split("\t") for line in (out / "grid.tsv").read_text().splitlines()[1:]]
    assert {errors for _, _, errors, _, _ in grid} == {"0"}
    tuned = json.loads((out / "tuned.json").read_text())
    assert tuned == {"acoustic_scale": 1.0, "word_penalty": -0.1}


def test_weights_are_tuned_on_dev_and_used_on_test(graph, tmp_path):
    dev, test = PerfectScorer(TEXTS), PerfectScorer({"c1": "NO NO", "mumble": "YES YES"})
    out = tmp_path / "out"
    headline = decode_system(
        "made-up",
        {"dev": dev, "test": test},
        ["dev"],
        graph,
        tmp_path / "lang/words.txt",
        "2gram",
        CONFIG,
        out,
        jobs=1,
        command="./run.py",
    )
    assert headline == {"wer dev": 0.0, "wer test": 50.0, "no path": 1}
    grid = (out / "grid.tsv").read_text().splitlines()
    assert len(grid) == 1 + 4
    tuned = json.loads((out / "tuned.json").read_text())
    errors = {
        tuple(map(float, line.split("\t")[:2])): int(line.split("\t")[2]) for line in grid[1:]
    }
    assert errors[tuned["acoustic_scale"], tuned["word_penalty"]] == min(errors.values()) == 0
    assert max(errors.values()) > 0  # the penalty of -200 per word loses words
    rows = {row["split"]: row for row in json.loads((out / "rows.json").read_text())}
    assert (rows["test"]["del"], rows["test"]["ref_words"], rows["test"]["lm"]) == (2, 4, "2gram")
    assert "mumble\n" in (out / "test/text").read_text()
    assert (
        (out / "test/wer.txt").read_text().startswith("%WER 50.00 [ 2 / 4, 0 ins, 2 del, 0 sub ]")
    )
