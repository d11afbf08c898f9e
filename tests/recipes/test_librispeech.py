"""The hybrid recipe from audio to `%WER`: the outputs of one run.

`quick` shows what every run has; `finished`, which is trained longer, shows error rates.
"""

import json
import shlex

import jiwer
import pytest
import torch

from tests.recipes.librispeech_run import GMMS, NETWORKS, SPEAKERS, STAGES, errors_on_dev, table_of
from toolkit.features.normalise import Cmvn
from toolkit.features.shards import FeatureStore

pytest.importorskip("soundfile")

FIELDS = ["system", "split", "lm", "wer", "cer", "ins", "del", "sub", "ref_words", "rtf", "command"]
FIELDS += ["wer_low", "wer_high"]


@pytest.fixture(scope="module")
def transcripts(quick):
    """By split, read from the corpus itself."""
    transcripts = {}
    for split in SPEAKERS:
        paths = sorted((quick.root / "corpus" / split).rglob("*.trans.txt"))
        lines = [line for path in paths for line in path.read_text().splitlines()]
        transcripts[split] = dict(line.split(" ", 1) for line in lines)
    return transcripts


def neural(quick):
    """Return the best of the systems rescored by the 4-gram; the LSTM rescores it too."""
    errors = errors_on_dev(quick)
    return [min(("sat", *NETWORKS), key=lambda name: errors[name, "4gram"])]


def test_results_hold_a_row_for_each_system_and_split(quick):
    assert [(row["system"], row["split"], row["lm"]) for row in quick.rows] == [
        (system, split, lm)
        for systems, lms in (
            (GMMS[:3], ["3gram"]),
            (("sat", *NETWORKS), ["3gram", "4gram"]),
            (neural(quick), ["4gram+lstm"]),
            (["combined"], ["4gram"]),
        )
        for system in systems
        for lm in lms
        for split in SPEAKERS
    ]
    for row in quick.rows:
        assert [name for name in row if name != "wer_unknown_speaker"] == FIELDS
        errors = row["ins"] + row["del"] + row["sub"]
        assert row["wer"] == pytest.approx(100 * errors / row["ref_words"], abs=0.005)
        assert row["wer_low"] <= row["wer"] <= row["wer_high"]
        assert 0 <= row["cer"] < 100
        assert 0 < row["rtf"] < 10
        program, *arguments = shlex.split(row["command"])
        assert program.endswith("recipes/librispeech/run.py")
        assert arguments == quick.arguments


def assert_word_error_rates_below(exp, system, dev, test):
    rates = {row["split"]: row["wer"] for row in exp.rows if row["system"] == system}
    assert rates["dev"] < dev
    assert rates["test"] < test


@pytest.mark.parametrize(
    ("system", "dev", "test"),
    [
        ("mono", 40, 60),  # measured: 9 and 23 %
        ("tri", 40, 60),  # 11 and 22
        ("lda_mllt", 40, 80),  # 9 and 49
        ("sat", 45, 65),  # 15 and 32
        ("chain", 95, 97),  # 70 and 82
    ],
)
def test_three_minutes_of_speech_make_systems_that_recognise(quick, system, dev, test):
    assert_word_error_rates_below(quick, system, dev, test)


@pytest.mark.long
@pytest.mark.parametrize(
    ("system", "dev", "test"),
    [
        ("mono", 15, 35),  # measured: 3 and 13 %
        ("tri", 20, 30),  # 6 and 8
        ("lda_mllt", 20, 60),  # 4 and 36
        ("sat", 10, 30),  # 0 and 8
        ("lstm_ce", 50, 95),  # 23 and 79
        ("lstm_smbr", 50, 95),
        ("lstm_fmllr", 20, 50),
        ("blstm", 20, 60),  # 2 and 32
        ("chain", 10, 30),  # 2 and 3
        ("chain_fbank", 30, 60),  # 10 and 29
        ("combined", 10, 30),
    ],
)
def test_word_error_rates_are_those_of_a_recogniser(finished, system, dev, test):
    """Guessing gives 100 %; five minutes of three speakers give no robust recogniser."""
    assert_word_error_rates_below(finished, system, dev, test)


@pytest.mark.long
def test_adaptation_helps(finished):
    """The test speakers are not those of the training data."""
    wer = {row["system"]: row["wer"] for row in finished.rows if row["split"] == "test"}
    assert wer["sat"] < wer["lda_mllt"] - 5  # measured: 36 and 8 %


def test_adapted_features_lose_no_running_mean(quick):
    """The transforms remove the mean, so no frame depends on another."""
    folder = quick.root / "fmllr_features"
    normaliser, store = Cmvn.load(folder / "normaliser.json"), FeatureStore(folder / "train")
    features = store.load(store.ids[0])
    assert torch.equal(normaliser.apply(features)[7:], normaliser.apply(features[7:]))


def test_word_error_rates_are_jiwers_on_the_corpus_own_transcripts(quick, transcripts):
    for row in quick.rows:
        references = transcripts[row["split"]]
        words = quick.words(row["system"], row["split"], row["lm"])
        assert sorted(words) == sorted(references)
        measured = jiwer.wer([references[u] for u in words], list(words.values()))
        assert row["wer"] == pytest.approx(100 * measured, abs=0.005)
        assert row["ref_words"] == sum(len(text.split()) for text in references.values())


@pytest.mark.parametrize(
    ("run", "system"),
    [("quick", "chain"), pytest.param("finished", "lstm_smbr", marks=pytest.mark.long)],
)
def test_recognised_words_have_times_and_confidences(request, run, system):
    exp = request.getfixturevalue(run)
    for split in SPEAKERS:
        texts = exp.words(system, split)
        assert any(texts.values())
        texts_of_ctm = dict.fromkeys(texts, "")
        ends = dict.fromkeys(texts, 0.0)
        folder = exp.root / "decode" / system / split
        for line in (folder / "words.ctm").read_text().splitlines():
            utterance, _, start, duration, word, confidence = line.split()
            assert float(start) >= ends[utterance] - 1e-6
            ends[utterance] = float(start) + float(duration)
            assert 0 <= float(confidence) <= 1
            texts_of_ctm[utterance] = f"{texts_of_ctm[utterance]} {word}".strip()
        assert texts_of_ctm == texts
        lines = [line.split("\t") for line in (folder / "nbest.tsv").read_text().splitlines()]
        best = {utterance: words for utterance, rank, *_, words in lines[1:] if rank == "1"}
        assert dict.fromkeys(texts, "") | best == texts


def test_the_adapted_gmms_and_the_combination_have_times_and_lattices(quick, transcripts):
    from toolkit.kaldi.lattices import oracle_texts

    for system in ("sat", "lstm_fmllr", "blstm", "combined"):
        for split in SPEAKERS:
            folder = quick.root / "decode" / system / split
            words = dict.fromkeys(quick.words(system, split), "")
            for line in (folder / "words.ctm").read_text().splitlines():
                utterance, _, _, _, word, _ = line.split()
                words[utterance] = f"{words[utterance]} {word}".strip()
            assert words == quick.words(system, split)
    for row in quick.rows:
        if row["lm"] == "4gram":
            folder = quick.root / "decode" / row["system"] / row["split"]
            references = transcripts[row["split"]]
            if (folder / "word_lattices").exists():
                texts, _, _ = oracle_texts(folder, references)
                oracle_hypotheses = list(texts.values())
                errors = (row["ins"] + row["del"] + row["sub"]) / row["ref_words"]
                assert jiwer.wer([references[u] for u in texts], oracle_hypotheses) <= errors + 1e-9


def test_the_decoding_benchmark_finds_what_it_needs(quick):
    from benchmarks.decode import DecodingInputs

    material = DecodingInputs.of_run(quick.root)
    assert material.graph.exists()
    assert len(material.scores) == len(material.references) > 1


def test_the_table_of_results_is_printed_at_the_end(quick):
    assert ".partial" not in table_of(quick.rows, quick.result.output, "==")


def test_every_stage_leaves_a_marker_and_no_partial_output(quick):
    markers = {path.stem: path for path in quick.root.glob("stages/[0-9]*")}
    assert sorted(markers) == [f"{number:02d}" for number in STAGES]
    for path in markers.values():
        marker = json.loads(path.read_text())
        assert marker["outputs"]
        assert all((quick.root / name).exists() for name in marker["outputs"])
        assert marker["attempts"][-1]["code"]["versions"]["search"] == "native"
        assert marker["seconds"] >= 0
    assert not [path for path in (quick.root / ".partial").rglob("*") if path.is_file()]
