"""Factors of errors, phones, systems against each other, and alignments."""

import math
import random
import re
from dataclasses import replace
from html import unescape
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.report.conftest import HOSTILE
from tests.report.test_browser import split_errors
from toolkit.align.ctm_textgrid import TimedToken
from toolkit.align.store import Outcome, write_shard, write_table
from toolkit.hmm.topology import Topology
from toolkit.lang.dictionary import read_dictionary
from toolkit.report.error_analysis import (
    MAX_BINS,
    MAX_SYSTEMS,
    MIN_BIN_UTTERANCES,
    SplitErrors,
    compare_decodes,
    factor_figures,
    format_p_value,
    pairwise_tests_table,
    phone_overview,
    phone_pairs,
    quantile_bins,
    word_times_from_phones,
    worst_alignments,
)
from toolkit.report.media import Clip
from toolkit.report.pages import Budget
from toolkit.report.run_data import Decode, Split, Utterance, read_splits
from toolkit.report.run_folder import RunFolder
from toolkit.score.compare import compare
from toolkit.score.wer import score

ROWS = st.lists(
    st.tuples(st.integers(0, 30).map(float), st.integers(0, 5), st.integers(0, 9)), max_size=150
)


@given(ROWS)
def test_bins_divide_the_utterances_by_value(rows):
    values, errors, words = zip(*rows, strict=True) if rows else ((), (), ())
    bins = quantile_bins(values, errors, words)
    assert len(bins) <= MAX_BINS
    assert bool(bins) or len(rows) < 2 * MIN_BIN_UTTERANCES or not sum(words)
    for error_bin, higher in pairwise(bins):
        assert error_bin.high < higher.low  # equal values are in the same bin
    for error_bin in bins:
        inside = [row for row in rows if error_bin.low <= row[0] <= error_bin.high]
        assert error_bin.utterances == len(inside)
        assert (error_bin.errors, error_bin.words) == (
            sum(r[1] for r in inside),
            sum(r[2] for r in inside),
        )
        assert error_bin.low <= error_bin.middle <= error_bin.high
        assert error_bin.wer == pytest.approx(100 * error_bin.errors / error_bin.words)


def test_figures_show_the_available_columns():
    texts = {f"u{n:03d}": "a b c d"[: 1 + 2 * (n % 4)] for n in range(80)}
    hypotheses = {id: "a" for id in texts}
    quiet = factor_figures(split_errors(texts, hypotheses))
    assert "WER against duration" in quiet
    assert "WER against speaking rate" in quiet
    assert "noise ratio" not in quiet
    noisy = factor_figures(split_errors(texts, hypotheses, snr=[float(n) for n in range(80)]))
    assert "WER against signal-to-noise ratio" in noisy
    assert "0 to 9 dB: WER" in noisy
    few = dict(list(texts.items())[: 2 * MIN_BIN_UTTERANCES - 1])
    assert factor_figures(split_errors(few, few)) == ""


LEXICON = """<UNK> SPN
CAT K_B AE_I T_E
CAT K_B AH_I T_E
HAT HH_B AE_I T_E
A AH_S
SAT S_B AE_I T_E
"""
REFERENCES = {"u1": "A CAT SAT", "u2": "CAT ZEBRA", "u3": "SAT"}
HYPOTHESES = {"u1": "A HAT SAT A", "u2": "CAT", "u3": "SAT"}


def make_decode(name):
    return Decode(name, "dev", score(REFERENCES, HYPOTHESES), Path())


def test_words_are_compared_by_their_first_pronunciations(tmp_path):
    (tmp_path / "lexicon.txt").write_text(LEXICON)
    pairs = phone_pairs(make_decode("mono"), read_dictionary(tmp_path / "lexicon.txt").lexicon)
    assert pairs[0] == [
        *[("AH", "AH"), ("K", "HH"), ("AE", "AE"), ("T", "T")],
        *[("S", "S"), ("AE", "AE"), ("T", "T"), (None, "AH")],
    ]
    assert pairs[1] == [("K", "K"), ("AE", "AE"), ("T", "T"), ("SPN", None)]
    assert all(ref == hyp for ref, hyp in pairs[2])


def test_only_gmms_with_a_lexicon_have_phones(tmp_path):
    (tmp_path / "stages").mkdir()
    run = RunFolder.open(tmp_path)
    utterances = {id: Utterance(1.0, "s", text, 0) for id, text in REFERENCES.items()}
    split = Split("dev", Path(), utterances, 0)
    errors = SplitErrors(split, [make_decode("lstm"), make_decode("sat/first_pass")])
    assert phone_overview(run, errors) == ""
    (tmp_path / "sat").mkdir()
    (tmp_path / "sat/gmm.safetensors").touch()
    assert phone_overview(run, errors) == ""
    (tmp_path / "lang").mkdir()
    (tmp_path / "lang/lexicon.txt").write_text(LEXICON)
    html = phone_overview(run, errors)
    assert "dev, phones of sat/first_pass" in html
    assert "K → HH" in html
    assert "SPN" in html
    assert "wrong %" not in html  # no phone was said ten times


def decode(name, rate, seed):
    """Return the decode of a system with this word error rate."""
    chance = random.Random(seed)
    texts = {f"u{n:03d}": "a b c d e f g h" for n in range(60)}
    wrong = {
        id: " ".join("x" if chance.random() < rate else word for word in text.split())
        for id, text in texts.items()
    }
    return Decode(name, "dev", score(texts, wrong), Path())


def split_of(decodes):
    utterances = {u.id: Utterance(1.0, "s", u.ref_text, 0) for u in decodes[0].score.utterances}
    return SplitErrors(Split("dev", Path(), utterances, 0), decodes)


@pytest.fixture(scope="module")
def systems():
    return [decode("mono", 0.3, 1), decode("<lstm>", 0.05, 2), decode("tri", 0.31, 3)]


def test_differences_are_those_of_the_scoring_tool(systems):
    for first in systems:
        for second in systems:
            comparison, expected = (
                compare_decodes(first, second),
                compare(first.score, second.score),
            )
            assert comparison.points == pytest.approx(expected.difference)
            assert comparison.test == expected.matched_pairs
            assert comparison.significant == (expected.matched_pairs.p_value < 0.05)
            assert comparison.exact == expected.p_value


def test_the_exact_test_decides_with_few_segments():
    """Three utterances are all worse by two errors; matched pairs give an infinite statistic."""
    texts = {f"u{n}": "a b c d e f g h" for n in range(10)}
    worse = texts | {f"u{n}": "x x c d e f g h" for n in range(3)}
    systems = [
        Decode(name, "dev", score(texts, hyp), Path())
        for name, hyp in (("right", texts), ("worse", worse))
    ]
    comparison = compare_decodes(*systems)
    assert comparison.test.p_value == 0
    assert (comparison.p_value, comparison.significant) == (0.25, False)
    html = pairwise_tests_table(split_of(systems))
    assert "p 0.250" in html
    assert "fewer than 50 segments have errors" in html
    assert 'class="best"' not in html


def test_the_table_has_each_pair_once_the_best_first(systems):
    html = pairwise_tests_table(split_of(systems))
    assert "<lstm>" not in html
    rows = [unescape(re.sub(r"<[^>]+>", " ", row)).split() for row in html.split("<tr>")[2:]]
    order = sorted(systems, key=lambda system: system.score.errors)
    assert [row[:2] for row in rows] == [
        [f"{n}.", system.name] for n, system in enumerate(order, 1)
    ]
    expected = compare_decodes(order[0], order[1])
    difference_text = f"{expected.points:+.2f} {format_p_value(expected.test.p_value)}"
    assert " ".join(rows[1]).startswith(f"2. {order[1].name} {difference_text}")
    assert html.count("p &lt; 0.001") + html.count("p 0.") == 3
    assert html.count('class="best"') == 2  # the two of about 30 % do not differ much


def test_one_system_makes_no_table_and_many_make_one_of_the_best(systems):
    assert pairwise_tests_table(split_of(systems[:1])) == ""
    many = [decode(f"s{n}", n / 40, n) for n in range(MAX_SYSTEMS + 2)]
    html = pairwise_tests_table(split_of(many))
    assert f"Only the best {MAX_SYSTEMS} of {MAX_SYSTEMS + 2} systems" in html
    order = [system.name for system in sorted(many, key=lambda system: system.score.errors)]
    rows = re.findall(r'<th scope="row">\d+\. (\w+)</th>', html)
    assert rows == order[:MAX_SYSTEMS]


PHONES = ("SIL", "AH_S", "K_B", "AE_I", "T_E", "SPN")
CLIP = Clip(0.3, "data:audio/flac;base64,", "data:image/png;base64,")


@pytest.fixture
def topology():
    return Topology(PHONES)


def phone_times(*phones):
    """Phones of 0.1 s each."""
    return [TimedToken(phone, n / 10, n / 10 + 0.1) for n, phone in enumerate(phones)]


def test_phones_are_joined_to_words_across_no_pause(topology):
    phones = phone_times("SIL", "AH_S", "K_B", "AE_I", "T_E", "SIL", "SPN", "SIL")
    entries = word_times_from_phones(phones, ["A", "CAT", "XYZ"], topology)
    times = [(e.token, round(e.start_s, 3), round(e.end_s, 3)) for e in entries]
    assert times == [("A", 0.1, 0.2), ("CAT", 0.2, 0.5), ("XYZ", 0.6, 0.7)]
    assert word_times_from_phones(phones, ["A", "CAT"], topology) == []


def states_of(topology, *phones):
    """Every state of these phones, 3 frames each."""
    ids = [n for p in phones for n in range(len(topology.phone_of_state_id))
           if topology.phone_of_state_id[n] == PHONES.index(p) + 1]  # fmt: skip
    return torch.tensor(ids).repeat_interleave(3)


def test_the_least_likely_utterances_are_shown_with_words_and_phones(made_up, topology):
    made_up.data()
    (made_up.root / "sat").mkdir()
    topology.save(made_up.root / "sat/topology.json")
    states = states_of(topology, "SIL", "K_B", "AE_I", "T_E", "AH_S", "SPN")
    ids = ["train-0", "train-1", "train-2"]
    outcomes = [
        Outcome(id, "ok", -value, 10.0, "") for id, value in zip(ids, (9, 30, 20), strict=True)
    ]
    outcomes.append(Outcome("train-3", "failed", math.nan, 0.0, HOSTILE))
    shard = made_up.root / "ali/ali.000000.tar"
    write_shard(shard, {id: states.clone() for id in ids}, outcomes)
    write_table(made_up.root / "ali/table.tsv", outcomes)
    run = RunFolder.open(made_up.root)
    splits = read_splits(run)
    html = worst_alignments(run, splits, 2, Budget(10**6), lambda split, id: CLIP)
    assert re.findall(r"<code>([\w-]+)</code>", html) == ["train-1", "train-2"]
    assert "3 utterances; 1 failed" in html
    tiers = re.findall(r'<div class="times".*?</div>', html)
    tier_labels = [re.findall(r">([^<>]+)</span>", tier) for tier in tiers]
    assert tier_labels[0] == ["on", "the", "mat"]
    assert tier_labels[1] == ["K", "AE", "T", "AH", "SPN"]
    assert HOSTILE not in html
    assert worst_alignments(run, splits, 2, Budget(10), lambda split, id: CLIP) == ""
    shared = replace(splits[1], utterances=dict(splits[0].utterances))
    splits_read = []
    worst_alignments(
        run, [splits[0], shared], 2, Budget(10**6), lambda split, id: splits_read.append(split.name)
    )
    assert set(splits_read) == {"train"}


def test_only_recordings_that_fit_on_the_page_are_read(made_up, topology):
    """If the audio is missing or the page is full, no more are tried."""
    made_up.data()
    (made_up.root / "sat").mkdir()
    topology.save(made_up.root / "sat/topology.json")
    ids = [f"train-{n}" for n in range(4)]
    outcomes = [Outcome(id, "ok", -float(n), 10.0, "") for n, id in enumerate(ids)]
    states = states_of(topology, "SIL", "K_B", "AE_I", "T_E")
    shard = made_up.root / "ali/ali.000000.tar"
    write_shard(shard, {id: states.clone() for id in ids}, outcomes)
    write_table(made_up.root / "ali/table.tsv", outcomes)
    run = RunFolder.open(made_up.root)
    for media, room in ((None, 10**6), (CLIP, 10)):
        read, budget = [], Budget(room)

        def clip(split, id, media=media, read=read):
            read.append(id)
            return media

        assert worst_alignments(run, read_splits(run), 2, budget, clip) == ""
        assert read == ["train-3", "train-2"]
        assert budget.refused == (2 if media else 0)
