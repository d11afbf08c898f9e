"""Combination of systems: hypotheses in files and folders, weights, rules, outputs."""

import json
import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from click.testing import CliRunner

from tests.dummies import dummy_recording
from tests.fsa.word_lattices import chain
from toolkit import cli
from toolkit.align.ctm_textgrid import TimedToken, read_ctm, write_ctm
from toolkit.corpus.manifest import make_cut
from toolkit.decode.combine import (
    PARTS,
    Combination,
    CombinationError,
    DecodedSplit,
    combine,
    combine_decodes,
    read_system,
    tune_combination,
)
from toolkit.fsa.lattice_store import WeightsUsed, WordCodec, WordTable, write_lattices
from toolkit.fsa.word_lattice import normalise_to_weight, union
from toolkit.score.results import Result, record_results

SYMBOLS = ["<eps>", "ONE", "TWO", "THREE"]
DECODING = WeightsUsed(1.0, 0.0, 0.5)


def write_decode(folder, posteriors):
    """Write lattices of {utterance: {words: posterior}}; no hypotheses: the search failed."""
    lattices = {}
    for utterance, hypotheses in posteriors.items():
        parts = [
            normalise_to_weight(
                chain([*map(SYMBOLS.index, words.split()), 0]), np.zeros(len(words.split()) + 1), p
            )
            for words, p in hypotheses.items()
        ]
        lattices[utterance] = union(parts) if parts else None
    codec = WordCodec(symbol=SYMBOLS.__getitem__)
    write_lattices(codec.path(folder / "word_lattices", 0), lattices, codec, DECODING)
    best = {u: max(h, key=h.get, default="") for u, h in posteriors.items()}
    (folder / "text").write_text("".join(f"{u} {t}\n" for u, t in best.items()))
    return folder


@pytest.fixture
def system_folders(tmp_path):
    """The first system makes more errors, the second one has lower confidences."""
    first = {"u-1": {"ONE TWO": 0.6, "ONE THREE": 0.4}, "u-2": {"TWO": 1.0}, "u-3": {}}
    second = {
        "u-1": {"ONE THREE": 0.7, "TWO TWO": 0.3},
        "u-2": {"ONE": 0.4, "TWO": 0.6},
        "u-3": {"ONE": 1.0},
    }
    for name in "ab":
        (tmp_path / name / "word_lattices").mkdir(parents=True)
    return [write_decode(tmp_path / "a", first), write_decode(tmp_path / "b", second)]


REFERENCES = {"u-1": "ONE THREE", "u-2": "TWO", "u-3": "ONE"}


def texts(combined):
    return {name: " ".join(entry.token for entry in entries) for name, entries in combined.items()}


def test_posteriors_are_added_with_their_weights(system_folders):
    words = WordTable()
    systems = [read_system(path, words) for path in system_folders]
    combined = combine(systems, Combination((0.5, 0.5)), words)
    assert texts(combined) == {"u-1": "ONE THREE", "u-2": "TWO", "u-3": "ONE"}
    first, second = combined["u-1"]
    assert first.confidence == pytest.approx(0.5 * 1.0 + 0.5 * 0.7)
    assert second.confidence == pytest.approx(0.5 * 0.4 + 0.5 * 0.7)
    assert (first.start_s, first.end_s, second.end_s) == pytest.approx((0.0, 1.0, 2.0))
    assert combined["u-2"][0].confidence == pytest.approx(0.8)
    first_system_only = combine(systems, Combination((1.0, 0.0)), words)
    assert texts(first_system_only) == {"u-1": "ONE TWO", "u-2": "TWO", "u-3": ""}
    assert combine(systems, Combination((0.5, 0.5)), words, jobs=2) == combined


def test_the_rules_differ_where_the_best_path_has_few_friends(tmp_path):
    (tmp_path / "word_lattices").mkdir()
    folder = write_decode(tmp_path, {"u-1": {"ONE TWO": 0.4, "THREE TWO": 0.3, "THREE THREE": 0.3}})
    words = WordTable()
    system = read_system(folder, words)
    combined = {
        rule: combine([system], Combination((1.0,), rule), words)["u-1"] for rule in ("mbr", "best")
    }
    assert [e.token for e in combined["mbr"]] == ["THREE", "TWO"]
    assert [e.token for e in combined["best"]] == ["ONE", "TWO"]
    assert [e.confidence for e in combined["mbr"]] == pytest.approx([0.6, 0.7])
    assert [e.confidence for e in combined["best"]] == pytest.approx([0.4, 0.7])


def test_tuning_finds_the_fewest_errors_and_the_most_equal_weights(system_folders):
    words = WordTable()
    systems = [read_system(path, words) for path in system_folders]
    tuning = tune_combination([(systems, REFERENCES)], words)
    assert len(tuning.tried) == 22
    assert tuning.best == Combination((0.5, 0.5), "mbr")
    assert tuning.tried[tuning.best][:2] == (0, 4)
    for combination, (errors, units, _) in tuning.tried.items():
        hypotheses = texts(combine(systems, combination, words))
        num_errors = sum(
            sum(x != y for x, y in zip(hypotheses[u].split(), REFERENCES[u].split(), strict=False))
            + abs(len(hypotheses[u].split()) - len(REFERENCES[u].split()))
            for u in REFERENCES
        )
        assert (errors, units) == (num_errors, 4)
    third = [*systems, replace(systems[0], lattice=False)]
    tried = tune_combination([(third, REFERENCES)], words).tried
    # A linear lattice has no best path to compare with.
    assert {combination.rule for combination in tried} == {"mbr"}
    assert all(math.isclose(sum(combination.weights), 1) for combination in tried)
    assert len(tried) == 28


@pytest.fixture
def ctms(tmp_path):
    """Three systems: two agree on the second word, two on the absence of the third."""
    hypotheses = [
        [("ONE", 0.9), ("TWO", 0.8), ("THREE", 0.5)],
        [("ONE", 0.9), ("FOUR", 0.9)],
        [("ONE", 0.4), ("TWO", 0.7)],
    ]
    paths = []
    for number, hypothesis in enumerate(hypotheses):
        paths.append(tmp_path / f"{number}.ctm")
        tokens = [
            TimedToken(word, 0.5 * i, 0.5 * i + 0.4, confidence)
            for i, (word, confidence) in enumerate(hypothesis)
        ]
        write_ctm([("u-1", "1", tokens)], paths[-1])
    return paths


def test_words_with_confidences_vote(ctms):
    words = WordTable()
    systems = [read_system(path, words) for path in ctms]
    (entries,) = combine(systems, Combination((1 / 3,) * 3), words).values()
    assert [e.token for e in entries] == ["ONE", "TWO"]
    assert [e.confidence for e in entries] == pytest.approx([(0.9 + 0.9 + 0.4) / 3, 0.5], abs=1e-3)
    assert [e.start_s for e in entries] == pytest.approx([0.0, 0.5])
    assert [e.end_s for e in entries] == pytest.approx([0.4, 0.9])
    # A word of which its only system is not sure is better than nothing.
    (alone,) = combine(systems[2:], Combination((1.0,)), words).values()
    assert [e.token for e in alone] == ["ONE", "TWO"]


def test_transcripts_vote_without_times(tmp_path):
    for name, text in (
        ("a", "u-1 ONE TWO\nu-2\n"),
        ("b", "u-1 ONE TWO\n"),
        ("c", "u-1 FOUR\nu-2 ONE\n"),
    ):
        (tmp_path / f"{name}.txt").write_text(text)
    paths = [str(tmp_path / f"{name}.txt") for name in "abc"]
    result = CliRunner().invoke(cli.main, ["combine", "--out", str(tmp_path / "out"), *paths])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "out/text").read_text() == "u-1 ONE TWO\nu-2\n"
    assert not (tmp_path / "out/words.ctm").exists()


def test_systems_without_utterances_write_nothing(tmp_path):
    (tmp_path / "empty").write_text("")
    command = ["combine", "--out", str(tmp_path / "out"), str(tmp_path / "empty")]
    result = CliRunner().invoke(cli.main, command)
    assert (result.exit_code, result.stderr) == (
        1,
        f"Error: there are no utterances in {tmp_path / 'empty'}\n",
    )
    assert not (tmp_path / "out").exists()


def test_words_of_an_earlier_combination_do_not_stay(ctms, tmp_path):
    out, command = tmp_path / "out", ["combine", "--out", str(tmp_path / "out")]
    assert CliRunner().invoke(cli.main, [*command, *map(str, ctms)]).exit_code == 0
    (tmp_path / "other.txt").write_text("u-1 FIVE\n")
    assert CliRunner().invoke(cli.main, [*command, str(tmp_path / "other.txt")]).exit_code == 0
    words = WordTable()
    combined = combine([read_system(out, words)], Combination((1.0,)), words)
    assert texts(combined) == {"u-1": "FIVE"}


def test_texts_without_times_count_too(ctms, tmp_path, caplog):
    folder = tmp_path / "decoded"
    folder.mkdir()
    ctms[0].rename(folder / "words.ctm")
    (folder / "text").write_text("u-1 ONE TWO THREE\nu-2 GOOD MORNING\nu-3\n")
    (tmp_path / "other.txt").write_text("u-2 GOOD EVENING\n")
    words = WordTable()
    systems = [read_system(path, words) for path in (folder, tmp_path / "other.txt")]
    assert "lacks 1 utterances" in caplog.text
    assert not systems[0].timed
    assert systems[0].ids == ["u-1", "u-2", "u-3"]
    combined = combine(systems, Combination((0.6, 0.4)), words)
    assert [e.token for e in combined["u-2"]] == ["GOOD", "MORNING"]
    assert combined["u-3"] == []


def test_channels_are_not_mixed(tmp_path):
    write_ctm(
        [("call", side, [TimedToken("YES", 0.5, 0.7)]) for side in "AB"], tmp_path / "call.ctm"
    )
    with pytest.raises(CombinationError, match="'call' has the channels A and B"):
        read_system(tmp_path / "call.ctm", WordTable())


def test_the_command_tunes_scores_and_writes(system_folders, tmp_path):
    reference = tmp_path / "ref.txt"
    reference.write_text("".join(f"{u} {t}\n" for u, t in REFERENCES.items()))
    arguments = ["combine", "--out", str(tmp_path / "out"), "--ref", str(reference)]
    result = CliRunner().invoke(cli.main, [*arguments, "--tune", *map(str, system_folders)])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0] == "--rule mbr --weight 0.5 --weight 0.5"
    assert lines[1].startswith("%WER 0.00 [ 0 / 4, ")
    assert (tmp_path / "out/text").read_text() == "u-1 ONE THREE\nu-2 TWO\nu-3 ONE\n"
    assert [e.token for e in read_ctm(tmp_path / "out/words.ctm")] == ["ONE", "THREE", "TWO", "ONE"]
    with_weights = CliRunner().invoke(
        cli.main, [*arguments, *lines[0].split(), *map(str, system_folders)]
    )
    assert with_weights.output.splitlines() == lines[1:]
    with_rule = CliRunner().invoke(
        cli.main, [*arguments, "--tune", "--rule", "best", *map(str, system_folders)]
    )
    assert with_rule.output.startswith("--rule best --weight ")
    assert "--rule" not in with_rule.output.splitlines()[1]
    first_system_only = CliRunner().invoke(
        cli.main, [*arguments, "--rule", "best", str(system_folders[0])]
    )
    assert first_system_only.output.startswith("%WER 50.00 [ 2 / 4, ")


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_weights_can_be_given_as_they_are_printed(count):
    parts = PARTS.get(count, 2)
    for shares in product(range(parts + 1), repeat=count):
        if sum(shares) == parts:
            Combination(tuple(float(f"{share / parts:g}") for share in shares))
    with pytest.raises(CombinationError, match="weights nan"):
        Combination((float("nan"),) * count)


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (["--weight", "nan", "--weight", "nan"], 2, "nan is not a finite number"),
        (["--weight", "1"], 1, "1 weights for 2 systems"),
        (["--weight", "0.5", "--weight", "0.6"], 1, "weights 0.5, 0.6"),
        (["--tune"], 2, "--tune needs --ref"),
        (["nowhere"], 1, "nowhere"),
    ],
)
def test_faults_are_named(system_folders, tmp_path, options, status, message):
    arguments = ["combine", "--out", str(tmp_path / "out"), *map(str, system_folders), *options]
    result = CliRunner().invoke(cli.main, arguments)
    assert result.exit_code == status
    assert message in result.output


def test_systems_without_common_utterances_and_empty_folders(system_folders, tmp_path):
    (tmp_path / "other.txt").write_text("v-1 ONE\n")
    words = WordTable()
    systems = [read_system(path, words) for path in (system_folders[0], tmp_path / "other.txt")]
    with pytest.raises(CombinationError, match=r"other\.txt have no utterance in common"):
        combine(systems, Combination((0.5, 0.5)), words)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CombinationError, match="contains no word lattices"):
        read_system(tmp_path / "empty", words)


def test_decodes_of_a_recipe(system_folders, tmp_path):
    rows = []
    for folder, errors, lm in zip(system_folders, (2, 1), ("3gram", "4gram"), strict=True):
        fields = {"wer": 0.0, "cer": 0.0, "insertions": 0, "deletions": 0, "ref_words": 4}
        results = [
            Result(folder.name, split, lm, substitutions=errors, rtf=0.25, command="c", **fields)
            for split in ("dev", "test")
        ]
        rows.append(folder / "rows.json")
        record_results(rows[-1], results)
    cuts = [
        make_cut(u, dummy_recording(0), text, u[-1])
        for u, text in [*REFERENCES.items(), ("u-9", "ONE")]
    ]
    splits = {
        name: DecodedSplit(cuts, {path.name: path for path in system_folders}, name == "dev")
        for name in ("dev", "test")
    }
    out = tmp_path / "combined"
    out.mkdir()
    headline = combine_decodes(splits, rows, out, 1, "the command")
    # u-9 has no features, and so no lattice: its word counts as deleted.
    assert headline == {"wer dev": 20.0, "wer test": 20.0, "weight a": 0.5, "weight b": 0.5}
    tuned = json.loads((out / "tuned.json").read_text())
    assert tuned == {"rule": "mbr", "weights": {"a": 0.5, "b": 0.5}}
    lines = (out / "grid.tsv").read_text().splitlines()
    assert lines[0].split("\t") == ["rule", "a", "b", "errors", "words", "wer"]
    assert "mbr\t0.5\t0.5\t1\t5\t20.00" in lines
    written = json.loads((out / "rows.json").read_text())
    assert [(r["system"], r["split"], r["lm"], r["ref_words"]) for r in written] == [
        ("combined", "dev", "3gram+4gram", 5),
        ("combined", "test", "3gram+4gram", 5),
    ]
    assert all(r["rtf"] > 0.5 for r in written)
    assert (out / "test/text").read_text() == "u-1 ONE THREE\nu-2 TWO\nu-3 ONE\nu-9\n"
    comparison = (out / "test/comparison.txt").read_text()
    assert comparison.startswith("%WER of combined minus b: +0.00")


def test_decodes_without_words_to_tune_on_are_combined_with_equal_weights(
    system_folders, tmp_path, caplog
):
    rows = []
    for folder in system_folders:
        fields = {"wer": 0.0, "cer": 0.0, "insertions": 0, "deletions": 0, "ref_words": 4}
        row = Result(folder.name, "test", "lm", substitutions=0, rtf=0.2, command="c", **fields)
        rows.append(folder / "rows.json")
        record_results(rows[-1], [row])
    systems = {path.name: path for path in system_folders}
    cuts = {
        "dev": [make_cut(u, dummy_recording(0), "", u) for u in REFERENCES],
        "test": [make_cut(u, dummy_recording(0), text, u) for u, text in REFERENCES.items()],
    }
    splits = {
        name: DecodedSplit(split_cuts, systems, name == "dev") for name, split_cuts in cuts.items()
    }
    (tmp_path / "combined").mkdir()
    headline = combine_decodes(splits, rows, tmp_path / "combined", 1, "the command")
    assert headline == {"wer test": 0.0, "weight a": 0.5, "weight b": 0.5}
    assert any("NOT TUNED" in message for message in caplog.messages)
