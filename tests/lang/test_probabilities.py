"""Probabilities of pronunciations: files and estimates."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lang.scored_sentences import probabilities
from toolkit.errors import ToolkitError
from toolkit.lang.lang import Lang
from toolkit.lang.lexicon import Lexicon
from toolkit.lang.probabilities import (
    END_ENTRY,
    START_ENTRY,
    EntryProbabilities,
    LexiconProbabilities,
    NothingCountedError,
    PronunciationCounts,
    estimate_probabilities,
)

LEXICON = Lexicon({"A": [("a",), ("b", "b")], "AB": [("a", "b")]})
KNOWN = LexiconProbabilities({("A", ("a",)): EntryProbabilities(1, 0.25, 1.5)}, 0.9, 1.2, 0.1, 0.3)


@settings(deadline=None, max_examples=20)
@given(probabilities(list(LEXICON.pairs())))
def test_save_and_load_round_trip(tmp_path_factory, lexicon_probabilities):
    folder = tmp_path_factory.mktemp("lang")
    lang = replace(Lang.of(LEXICON), probabilities=lexicon_probabilities)
    lang.save(folder)
    assert Lang.load(folder) == lang


def test_a_folder_without_probabilities_loads_none(tmp_path):
    assert LexiconProbabilities.load(tmp_path) is None
    KNOWN.save(tmp_path)  # of a lexicon that was here before
    Lang.of(LEXICON).save(tmp_path)
    assert Lang.load(tmp_path).probabilities is None


def test_files_have_kaldis_format(tmp_path):
    KNOWN.save(tmp_path)
    assert (tmp_path / "lexiconp_silprob.txt").read_text() == "A 1 0.25 1.5 1.0 a\n"
    assert (tmp_path / "silprob.txt").read_text() == (
        "<s> 0.9\n</s>_s 1.2\n</s>_n 0.1\noverall 0.3\n"
    )


def test_pronunciations_without_an_entry_have_default_probabilities():
    assert KNOWN.of(("A", ("b", "b"))) == EntryProbabilities(1.0, 0.3, 1.0, 1.0)


def test_renamed():
    usual, rare = EntryProbabilities(1.0, 0.1), EntryProbabilities(0.5, 0.2)
    entries = {("A", ("a_S",)): usual, ("A", ("a",)): rare, ("B", ("b",)): rare}
    names = {("A", ("a_S",)): ("A", ("a",)), ("A", ("a",)): ("A", ("a",))}
    assert replace(KNOWN, entries=entries).renamed(names.get) == replace(
        KNOWN, entries={("A", ("a",)): usual}
    )


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("lexiconp_silprob.txt", "A 1 0.2 1 1", r"txt:1: the line is not `word"),
        ("lexiconp_silprob.txt", "A 1.5 0.2 1 1 a", r"txt:1: '1.5' is not a probability \(above"),
        ("lexiconp_silprob.txt", "A 1 1.0 1 1 a", "'1.0' is not a probability between 0 and 1"),
        ("lexiconp_silprob.txt", "A 1 0.5 0 1 a", "'0' is not a factor above 0"),
        ("lexiconp_silprob.txt", "A 1 0.5 1 inf a", "'inf' is not a factor above 0"),
        ("silprob.txt", "<s> 0.5 0.5", r"silprob.txt:1: the line is not one of <s>, </s>_s"),
        ("silprob.txt", "<s> 0", "'0' is not a probability between"),
        ("silprob.txt", "<s> 0.5", "no line begins with '</s>_s'"),
    ],
)
def test_errors_name_file_and_line(tmp_path, name, line, message):
    KNOWN.save(tmp_path)
    (tmp_path / name).write_text(f"{line}\n")
    with pytest.raises(ToolkitError, match=message):
        LexiconProbabilities.load(tmp_path)


def test_one_file_without_the_other_is_an_error(tmp_path):
    KNOWN.save(tmp_path)
    (tmp_path / "silprob.txt").unlink()
    with pytest.raises(ToolkitError, match=r"silprob.txt is missing.*belong together"):
        LexiconProbabilities.load(tmp_path)


COUNTED_LEXICON = Lexicon({"A": [("a",), ("b", "b")], "AB": [("a", "b")], "C": [("c",)]})
ENTRIES = list(COUNTED_LEXICON.pairs())


def counted(*utterances):
    counts = PronunciationCounts()
    for spoken, silences in utterances:
        counts.add(spoken, silences)
    return counts


def test_pairs_are_counted():
    a, ab = ENTRIES[0], ENTRIES[2]
    counts = counted(([a, ab], [True, False, True]), ([a], [True, False]), ([], [True]))
    assert counts.pairs == {
        (START_ENTRY, True, a): 2,
        (a, False, ab): 1,
        (ab, True, END_ENTRY): 1,
        (a, False, END_ENTRY): 1,
        (START_ENTRY, True, END_ENTRY): 1,
    }


def test_estimates_equal_values_computed_by_hand():
    usual, rare, ab, _ = ENTRIES
    spoken = [([usual, ab], [True, False, False])] * 8 + [([rare, ab], [True, True, False])] * 2
    estimated = estimate_probabilities(counted(*spoken), COUNTED_LEXICON)
    assert estimated.overall == 0.4  # 12 silences before 30 words and ends
    assert [estimated.of(e).pronunciation for e in ENTRIES] == [1.0, 0.333333, 1.0, 1.0]
    # (0 + 0.8) / (8 + 2), (2 + 0.8) / (2 + 2), (0 + 0.8) / (10 + 2), 0.8 / 2
    assert [estimated.of(e).silence_after for e in ENTRIES] == [0.08, 0.7, 0.07, 0.4]
    assert estimated.start == 0.9  # (10 + 0.8) / (10 + 2)
    # AB: 2 silences before it, 8 * 0.08 + 2 * 0.7 = 2.04 expected; 8 without, 7.96 expected
    assert estimated.of(ab).silence_before == pytest.approx(round(4 / 4.04, 2))
    assert estimated.of(ab).no_silence_before == pytest.approx(round(10 / 9.96, 2))
    # the end: none, 10 * 0.07 = 0.7 expected; 10 without, 9.3 expected
    assert estimated.silence_at_end == round(2 / 2.7, 2)
    assert estimated.no_silence_at_end == round(12 / 11.3, 2)
    assert (
        estimated.of(ENTRIES[3]).silence_before == estimated.of(ENTRIES[3]).no_silence_before == 1.0
    )


def test_estimating_from_no_utterance_is_an_error():
    with pytest.raises(NothingCountedError, match="no utterance is aligned"):
        estimate_probabilities(PronunciationCounts(), COUNTED_LEXICON)


@settings(deadline=None)
@given(
    st.lists(
        st.lists(st.sampled_from(ENTRIES), max_size=4).flatmap(
            lambda w: st.tuples(
                st.just(w), st.lists(st.booleans(), min_size=len(w) + 1, max_size=len(w) + 1)
            )
        ),
        min_size=1,
        max_size=6,
    )
)
def test_estimates_equal_those_of_kaldis_script(utterances):
    estimated = estimate_probabilities(counted(*utterances), COUNTED_LEXICON)
    chains = [([START_ENTRY, *words, END_ENTRY], silences) for words, silences in utterances]
    links = [
        (chain[i], pause, chain[i + 1])
        for chain, silences in chains
        for i, pause in enumerate(silences)
    ]

    def clipped(x):
        return min(0.99, max(0.01, round(x, 2)))

    overall = clipped(sum(pause for _, pause, _ in links) / len(links))
    assert estimated.overall == overall

    def follows(entry):
        pauses = [pause for entry_before, pause, _ in links if entry_before == entry]
        return clipped((sum(pauses) + 2 * overall) / (len(pauses) + 2))

    def factor(silent, entry):
        preceding = [
            (entry_before, pause)
            for entry_before, pause, entry_after in links
            if entry_after == entry
        ]
        count = sum(pause == silent for _, pause in preceding)
        expected_count = sum(
            follows(entry_before) if silent else 1 - follows(entry_before)
            for entry_before, _ in preceding
        )
        return max(0.01, round((count + 2) / (expected_count + 2), 2))

    assert estimated.start == follows(START_ENTRY)
    assert estimated.silence_at_end == pytest.approx(factor(True, END_ENTRY), abs=0.0101)
    assert estimated.no_silence_at_end == pytest.approx(factor(False, END_ENTRY), abs=0.0101)
    spoken_entries = [entry_before for entry_before, _, _ in links]
    for word, phones in ENTRIES:
        p = estimated.of((word, phones))
        most = max(1 + spoken_entries.count((word, variant)) for variant in COUNTED_LEXICON[word])
        assert p.pronunciation == pytest.approx(
            (1 + spoken_entries.count((word, phones))) / most, rel=1e-5
        )
        assert p.silence_after == follows((word, phones))
        # A sum in another order may fall on the other side of half a hundredth.
        assert p.silence_before == pytest.approx(factor(True, (word, phones)), abs=0.0101)
        assert p.no_silence_before == pytest.approx(factor(False, (word, phones)), abs=0.0101)
