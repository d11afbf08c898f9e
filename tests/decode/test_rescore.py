"""Rescoring of n-best lists: the formula, the choice, the weights, a system of made-up scores."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from tests.dummies import dummy_recording
from toolkit.corpus.manifest import make_cut
from toolkit.decode.config import DecodeConfig, NbestConfig, NeuralRescoringConfig
from toolkit.decode.decoded import NbestList, NbestListError, read_nbest_lists
from toolkit.decode.rescore import (
    WEIGHTS,
    Rescorer,
    RescoringWeights,
    make_nbest_lists,
    neural_scores,
    rescore_system,
    tune_rescoring,
)
from toolkit.decode.search import DecoderFiles, weight_axes
from toolkit.decode.system import write_nbest_and_ctm
from toolkit.decode.tune import ErrorCount
from toolkit.errors import ToolkitError
from toolkit.fsa.config import Beam
from toolkit.fsa.lattice import Weights, WeightsError
from toolkit.fsa.nbest import Hypothesis
from toolkit.lang.arpa import read_arpa
from toolkit.lang.tables import SymbolTable
from toolkit.models.config import WordLstmConfig
from toolkit.models.lstm import WordLstm
from toolkit.models.neural_lm import NeuralLm, Shortlist

LISTED = NbestList(("A", "B C", ""), (-10.0, -8.0, -9.0), (-1.0, -2.0, 0.0), (-3.0, -5.0, -6.0))
NEURAL = np.array([-4.0, -1.0, -7.0])


def test_the_formula():
    totals = RescoringWeights(0.25, 0.1, -0.5).total(LISTED, NEURAL)
    for n, words in enumerate((1, 2, 0)):
        lm = 0.25 * NEURAL[n] + 0.75 * LISTED.lm[n]
        assert totals[n] == pytest.approx(
            0.1 * LISTED.acoustic[n] + LISTED.graph[n] + lm - 0.5 * words
        )


def test_the_weight_decides():
    assert RescoringWeights(0.0, 0.001, 0.0).best(LISTED, NEURAL) == "A"
    assert RescoringWeights(1.0, 0.001, 0.0).best(LISTED, NEURAL) == "B C"
    assert RescoringWeights(0.0, 0.001, -9.0).best(LISTED, NEURAL) == ""
    equal = NbestList(("A", "B"), (1.0, 1.0), (0.0, 0.0), (2.0, 2.0))
    assert RescoringWeights(0.5, 1.0, 0.0).best(equal, np.zeros(2)) == "A"
    assert RescoringWeights(0.5, 1.0, 0.0).best(NbestList((), (), (), ()), np.zeros(0)) == ""


def test_scores_are_split_into_parts_and_summed_again():
    words = SymbolTable.of(["<eps>", "A", "B"])
    weights = Weights(0.5, -2.0)
    listed = NbestList.of(
        [
            Hypothesis((1, 2), score=-20.0, acoustic=-10.0, lm=-7.0),
            Hypothesis((), score=-21.0, acoustic=-30.0, lm=-6.0),
        ],
        weights,
        words,
    )
    assert listed.texts == ("A B", "")
    assert listed.graph == pytest.approx((-4.0, 0.0))
    same = RescoringWeights.of(0.0, weights).total(listed, np.array([5.0, 6.0]))
    assert same == pytest.approx([-20.0, -21.0])


def test_weights_are_read_as_they_were_written(tmp_path):
    weights = RescoringWeights(0.5, 0.25, -1.0)
    weights.save(tmp_path / "w.json")
    assert RescoringWeights.load(tmp_path / "w.json") == weights
    (tmp_path / "w.json").write_text('{"neural": 2.0, "acoustic_scale": 1.0, "word_penalty": 0.0}')
    with pytest.raises(WeightsError, match=r"w\.json.*`neural` is 2"):
        RescoringWeights.load(tmp_path / "w.json")


def test_the_neural_weight_is_tuned_to_its_benefit():
    errors = {0.0: 5, 0.25: 3, 0.5: 4, 1.0: 3}
    calls = []

    def count_errors(neural, scale, points):
        calls.append((neural, scale))
        return [ErrorCount.of([errors[neural] + (point[0] != 2.0), 0, 0], 10) for point in points]

    def tuned(keep=None):
        axes, neural = weight_axes((1.0, 2.0, 3.0), (0.0,)), (1.0, 0.0, 0.5, 0.25)
        return tune_rescoring(count_errors, 10, Weights(1.0), axes, keep, neural)[0]

    assert tuned() == RescoringWeights(0.25, 2.0, 0.0)
    assert set(calls) == {(neural, scale) for neural in errors for scale in (1.0, 2.0)}
    errors[0.0] = 3
    assert tuned().neural == 0.0
    calls.clear()
    assert tuned(keep=2.0) == RescoringWeights(0.0, 1.0, 0.0)
    assert {scale for _, scale in calls} == {1.0}


class Preference:
    """A language model that is sure of one text."""

    shortlist = None

    def __init__(self, *preferred):
        self.preferred = [text.split() for text in preferred]
        self.scored_texts = []

    def score(self, sentences):
        self.scored_texts += map(" ".join, sentences)
        return [
            np.full(len(words) + 1, 0.0 if list(words) in self.preferred else -100.0)
            for words in sentences
        ]


CONFIG = DecodeConfig(
    acoustic_scale=1.0, scales=(0.5, 1.0), penalties=(-1.0, 0.0), beam=Beam(1000.0, 1000.0)
)


@pytest.fixture
def decoder(recogniser):
    return DecoderFiles(recogniser.graph, recogniser.words, CONFIG)


def test_lists_hold_the_scores_of_search_and_language_model(recogniser, tmp_path, decoder):
    scorer = recogniser.scorer({"doubt1": "YES NO", "mumble": "YES", "b": "NO"})
    utterances = make_nbest_lists(scorer, decoder, -1.0, 5, tmp_path, jobs=1)
    assert [x.utterance for x in utterances] == ["doubt1", "mumble", "b"]
    listed = utterances[0].nbest
    assert len(listed.texts) == 5 == len(set(listed.texts))
    assert utterances[1].nbest.texts == ()
    model = read_arpa(recogniser.folder / "lm.arpa")
    expected = [math.log(10) * model.logprob(words) for words in listed.sentences]
    assert listed.lm == pytest.approx(expected, abs=1e-3)
    ordered = RescoringWeights(0.0, 1.0, -1.0).total(listed, np.zeros(5))
    assert list(ordered) == sorted(ordered, reverse=True)
    assert all(g < 0 for g in listed.graph)
    # a finished shard is kept, a damaged one is an error
    scorer.log_likelihoods = None
    assert make_nbest_lists(scorer, decoder, -1.0, 5, tmp_path, jobs=1) == utterances
    (tmp_path / "nbest.000000.jsonl").write_text("{}\n")
    with pytest.raises(NbestListError, match=r"nbest\.000000.*remove"):
        make_nbest_lists(scorer, decoder, -1.0, 5, tmp_path, jobs=1)


def test_posteriors_are_shares_of_the_rescored_list():
    listed = NbestList(("A B", "A", "C B"), (0.0,) * 3, (0.0,) * 3, (0.0,) * 3)
    share = np.array([0.6, 0.3, 0.1])
    words, sure = RescoringWeights(1.0, 1.0, 0.0).words(listed, np.log(share) - 700)
    assert words == ["A", "B"]
    assert sure == pytest.approx([0.9, 0.7], abs=0.002)
    nothing = NbestList(("",), (0.0,), (0.0,), (0.0,))
    assert RescoringWeights(1.0, 1.0, 0.0).words(nothing, np.zeros(1)) == ([], [])


def noisy_scorers(recogniser):
    """Scorers of dev and test that slightly prefer YES NO; the reference is NO NO."""
    scorers = {}
    for split in ("dev", "test"):
        scorers[split] = recogniser.scorer({f"doubt-{split}": "YES NO", "mumble": "NO"})
        spoken = recogniser.scorer({f"doubt-{split}": "NO NO", "mumble": "NO"}).store
        cut = spoken.cut
        scorers[split].store.cut = cut
    return scorers


def rescore(recogniser, decoder, model, out, weights=(0.0, 0.5), nbest=None, failed_cuts=()):
    scorers = noisy_scorers(recogniser)
    scorers["test"].store.failed_cuts = list(failed_cuts)
    tuned = out.parent / "tuned.json"
    tuned.write_text('{"acoustic_scale": 1.0, "word_penalty": 0.0}')
    return rescore_system(
        "made-up",
        "2gram+lstm",
        scorers,
        tune_on=["dev"],
        decoder=decoder,
        tuned=tuned,
        model=model,
        config=NeuralRescoringConfig(count=20, weights=weights),
        out=out,
        jobs=1,
        command="./run.py",
        nbest=nbest,
    )


def test_nbest_lists_of_the_decode_are_reused(recogniser, tmp_path, decoder):
    model, scorers = Preference("NO NO"), noisy_scorers(recogniser)
    rescoring_decoder = replace(decoder, config=replace(CONFIG, scales=(1.0,)))
    expected = rescore(recogniser, rescoring_decoder, model, tmp_path / "expected")
    folder, lang = tmp_path / "decode", recogniser.folder / "lang"
    arguments = (scorers, ["dev"], decoder, Weights(1.0), lang, recogniser.senones)
    write_nbest_and_ctm(*arguments, NbestConfig(25), folder, jobs=1)
    for split, scorer in scorers.items():
        new_lists = make_nbest_lists(
            scorer, decoder, 0.0, 20, tmp_path / "expected" / split, jobs=1
        )
        lists = read_nbest_lists(folder / split / "nbest", 20)
        assert [(x.utterance, x.nbest) for x in lists] == [
            (x.utterance, x.nbest) for x in new_lists
        ]
        listed = sorted((folder / split / "nbest").glob("nbest.*.jsonl"))
        written = [
            json.loads(line)["decode_seconds"]
            for path in listed
            for line in path.read_text().splitlines()
        ]
        assert [x.decode_seconds for x in lists] == written
    rescoring_decoder = replace(
        rescoring_decoder, graph=tmp_path / "removed"
    )  # which another search would need
    nbest = {split: folder / split / "nbest" for split in scorers}
    out = tmp_path / "out"
    assert rescore(recogniser, rescoring_decoder, model, out, nbest=nbest) == expected
    for name in ("test/text", "grid.tsv", "weights.json", "calibration.json"):
        assert (out / name).read_bytes() == (tmp_path / "expected" / name).read_bytes()
    at_another_scale = replace(rescoring_decoder, config=replace(CONFIG, scales=(0.5,)))
    with pytest.raises(ToolkitError, match="removed"):
        rescore(recogniser, at_another_scale, model, tmp_path / "other", nbest=nbest)
    (folder / "dev/nbest/nbest.000000.jsonl").write_text('{"utterance": "b"}')
    with pytest.raises(NbestListError, match=r"nbest\.000000.*decode again"):
        read_nbest_lists(folder / "dev/nbest", 20)


def test_a_system_is_tuned_on_dev_and_rescored(recogniser, decoder, tmp_path):
    out = tmp_path / "out"
    headline = rescore(recogniser, decoder, Preference("NO NO"), out)
    # the mumbled word is deleted, the two others are right
    assert headline == {"wer dev": 33.33, "wer test": 33.33, "neural weight": 0.5}
    assert (out / "test/text").read_text() == "doubt-test NO NO\nmumble\n"
    rows = json.loads((out / "rows.json").read_text())
    assert [(r["split"], r["lm"], r["del"]) for r in rows] == [
        ("dev", "2gram+lstm", 1),
        ("test", "2gram+lstm", 1),
    ]
    assert RescoringWeights.load(out / "weights.json").neural == 0.5
    grid = [line.split("\t") for line in (out / "grid.tsv").read_text().splitlines()]
    assert {line[0] for line in grid[1:]} == {"0", "0.5"}
    assert min(int(line[3]) for line in grid[1:] if line[0] == "0") == 2


def test_a_model_that_does_not_help_is_not_used(recogniser, decoder, tmp_path):
    model = Preference("YES YES YES")
    headline = rescore(recogniser, decoder, model, tmp_path / "out")
    assert headline["neural weight"] == 0.0
    assert (tmp_path / "out/test/text").read_text() == "doubt-test YES NO\nmumble\n"
    assert "YES YES YES" in model.scored_texts


def test_a_rescorer_is_written_read_and_chooses(tmp_path):
    shortlist = Shortlist.of({"A": 2, "B": 1, "C": 1}, ["A", "B", "C"], None)
    model = NeuralLm(WordLstm(WordLstmConfig(vocabulary=6, hidden=3)), shortlist)
    rescorer = Rescorer(model, RescoringWeights(0.5, 0.1, 0.0))
    model.save(tmp_path)
    rescorer.weights.save(tmp_path / WEIGHTS)
    loaded = Rescorer.load(tmp_path)
    assert loaded.weights == rescorer.weights
    neural = [scores.sum() for scores in model.score(LISTED.sentences)]
    best = int(np.argmax(rescorer.weights.total(LISTED, np.array(neural))))
    assert loaded.best(LISTED) == LISTED.texts[best]
    assert loaded.best(NbestList((), (), (), ())) == ""
    lists = neural_scores(model, [LISTED, NbestList((), (), (), ()), replace(LISTED)])
    assert [len(x) for x in lists] == [3, 0, 3]
    assert lists[2] == pytest.approx(lists[0])


@pytest.mark.parametrize("change", [{"count": 0}, {"weights": ()}, {"weights": (1.5,)}])
def test_impossible_settings_are_refused(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        NeuralRescoringConfig(**change)


def test_empty_transcripts_count_and_nothing_is_tuned_on_them_alone(
    recogniser, decoder, tmp_path, caplog
):
    tuned = tmp_path / "tuned.json"
    tuned.write_text('{"acoustic_scale": 1.0, "word_penalty": 0.5}')

    def rescored(name, **dev):
        scorers = {"dev": recogniser.scorer(dev), "test": recogniser.scorer({"c": "NO NO"})}
        config = NeuralRescoringConfig(count=20, weights=(0.0, 0.5))
        arguments = (decoder, tuned, Preference("YES"), config, tmp_path / name, 1, "./run.py")
        return rescore_system("made-up", "lm", scorers, ["dev"], *arguments)

    headline = rescored("some", hush="", doubt="YES", b="YES", c="YES")
    assert headline["wer dev"] == 0.0
    assert not caplog.messages
    assert rescored("none", hush="") == {"wer test": 0.0, "neural weight": 0.0}
    assert "NOT TUNED" in caplog.messages[0]
    weights = RescoringWeights.load(tmp_path / "none/weights.json")
    assert weights == RescoringWeights(0.0, 1.0, 0.5)
    assert (tmp_path / "none/dev/text").read_text() == "hush\n"


@pytest.mark.parametrize("name", ["neural", "acoustic_scale", "word_penalty"])
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_weights_that_are_not_finite_are_named(tmp_path, name, value):
    path = tmp_path / "weights.json"
    RescoringWeights(0.5, 0.25, -1.0).save(path)
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, name: float(value)}))
    with pytest.raises(WeightsError, match=r"weights\.json"):
        RescoringWeights.load(path)


def test_utterances_without_features_are_deletions(recogniser, tmp_path, decoder):
    model = Preference("NO NO")
    failed = make_cut("short", dummy_recording(0, 0.02), "YES NO YES", "speaker")
    for name, failed_cuts in (("without", []), ("with", [failed])):
        rescore(recogniser, decoder, model, tmp_path / name, failed_cuts=failed_cuts)
    without, counted = (
        {row["split"]: row for row in json.loads((tmp_path / name / "rows.json").read_text())}
        for name in ("without", "with")
    )
    assert counted["dev"]["wer"] == without["dev"]["wer"]
    assert counted["test"]["del"] == without["test"]["del"] + 3
    assert counted["test"]["ref_words"] == without["test"]["ref_words"] + 3
    assert (tmp_path / "with/test/text").read_text().splitlines()[-1] == "short"
