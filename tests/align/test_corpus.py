"""Alignment of a store of made-up scores: outcomes, shards, resuming, limits."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.dummies import dummy_recording
from toolkit.align.config import CorpusAlignConfig
from toolkit.align.corpus import AlignmentFailuresError, align_corpus
from toolkit.align.store import AlignmentStore, MissingAlignmentError, read_table
from toolkit.corpus.manifest import make_cut
from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology
from toolkit.lang.lang import Lang
from toolkit.lang.lexicon import Lexicon

LANG = Lang.of(Lexicon({"YES": [("Y", "EH", "S")], "NO": [("N", "OW")]}))
TOPOLOGY = Topology(tuple(LANG.real_phones))
SENONES = Senones.monophone(TOPOLOGY)
TEXTS = {"a": "YES NO", "b": "NO", "short": "YES YES YES", "c": "YES"}


class Store:
    path = Path("train")
    shards = [["a", "b"], ["short", "c"]]  # noqa: RUF012

    def cut(self, utterance):
        return make_cut(utterance, dummy_recording(0), TEXTS[utterance], "speaker")


class CertainScorer:
    """Every state of the transcript for four frames; "short" has five frames in all."""

    store = Store()
    frame_shift = 0.01

    def __init__(self):
        self.scored_utterances = []

    def truth(self, utterance):
        phones = [p for w in TEXTS[utterance].split() for p in LANG.pronunciation_ids(w)[0]]
        return [TOPOLOGY.state_id(p, s) for p in phones for s in range(3) for _ in range(4)]

    def log_likelihoods(self, utterance):
        self.scored_utterances.append(utterance)
        states = self.truth(utterance)[: 5 if utterance == "short" else None]
        scores = torch.full((len(states), SENONES.num_pdfs), -20.0)
        scores[range(len(states)), states] = -1.0
        return scores

    def scores_of(self, utterance, pdfs):
        return self.log_likelihoods(utterance)[:, pdfs]


@pytest.fixture
def lang(tmp_path):
    LANG.save(tmp_path / "lang")
    return tmp_path / "lang"


CONFIG = CorpusAlignConfig(max_failed=0.4)


def align(scorer, lang, out, config=CONFIG):
    out.mkdir(exist_ok=True)
    return align_corpus(scorer, SENONES, lang, config, out, jobs=1)


def test_every_utterance_has_an_outcome(lang, tmp_path):
    scorer = CertainScorer()
    headline = align(scorer, lang, tmp_path / "ali")
    assert (headline["aligned"], headline["failed"]) == (3, 1)
    assert headline["log_likelihood_per_frame"] == pytest.approx(-1.0)
    table = {outcome.utterance: outcome for outcome in read_table(tmp_path / "ali/table.tsv")}
    assert list(table) == ["a", "b", "short", "c"]
    assert table["a"].status == "ok"
    assert table["short"].status == "failed"
    assert table["short"].reason == "5 frames, but the transcript needs 27"
    assert math.isnan(table["short"].log_likelihood_per_frame)
    store = AlignmentStore(tmp_path / "ali")
    assert sorted(store.ids) == ["a", "b", "c"]
    assert store.load("a").tolist() == scorer.truth("a")
    with pytest.raises(MissingAlignmentError, match=r"short .* table\.tsv"):
        store.load("short")


def test_finished_shards_are_kept(lang, tmp_path):
    first = CertainScorer()
    align(first, lang, tmp_path / "ali")
    bytes_before = (tmp_path / "ali/ali.000000.tar").read_bytes()
    scorer = CertainScorer()
    (tmp_path / "ali/ali.000001.tar").unlink()
    (tmp_path / "ali/ali.000000.tsv").write_text("header\na\tok\t-1.0\t10.0\t\n")
    align(scorer, lang, tmp_path / "ali")
    assert scorer.scored_utterances == ["short", "c"]
    assert (tmp_path / "ali/ali.000000.tar").read_bytes() == bytes_before


def test_finished_shards_are_not_aligned_again(lang, tmp_path):
    first = align(CertainScorer(), lang, tmp_path / "ali")
    scorer = CertainScorer()
    assert align(scorer, lang, tmp_path / "ali") == first
    assert scorer.scored_utterances == []


def test_too_many_failures_name_utterance_and_reason(lang, tmp_path):
    with pytest.raises(AlignmentFailuresError, match=r"short .5 frames, but the transcript needs"):
        align(CertainScorer(), lang, tmp_path / "ali", replace(CONFIG, max_failed=0.2))
    assert (tmp_path / "ali/table.tsv").exists()
