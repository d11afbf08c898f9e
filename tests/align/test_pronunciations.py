"""Words and silences recovered from planted alignments."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.align.pronunciations import OtherLexiconError, count_pronunciations, match_words
from toolkit.align.store import write_shard
from toolkit.hmm.topology import Topology
from toolkit.lang.lang import Lang
from toolkit.lang.lexicon import Lexicon
from toolkit.lang.probabilities import PronunciationCounts

LEXICON = Lexicon({"A": [("a",), ("b", "b")], "AB": [("a", "b"), ("a",)], "C": [("c", "SIL")]})
MARKED, PLAIN = Lang.of(LEXICON.with_positions()), Lang.of(LEXICON)
UNKNOWN = ("<UNK>", ("SPN",))


def utterances(lang):
    entries = [*lang.lexicon.pairs(), UNKNOWN]
    words = st.lists(st.sampled_from(entries), max_size=5)
    return words.flatmap(
        lambda w: st.tuples(
            st.just(w), st.lists(st.booleans(), min_size=len(w) + 1, max_size=len(w) + 1)
        )
    )


def phones_of(spoken, silences):
    phones = ["SIL"] if silences[0] else []
    for (_, variant), pause in zip(spoken, silences[1:], strict=True):
        phones += [*variant, *(["SIL"] if pause else [])]
    return tuple(phones)


@settings(deadline=None)
@given(utterances(MARKED))
def test_position_marked_phones_identify_the_words(utterance):
    spoken, silences = utterance
    phones = phones_of(*utterance)
    words = [word if word != "<UNK>" else "unheard" for word, _ in spoken]
    match = match_words(phones, words, MARKED)
    assert match is not None
    assert phones_of(*match) == phones
    if "SIL" not in {p for _, variant in spoken for p in variant[1:]}:
        assert match == (spoken, silences)


@settings(deadline=None)
@given(utterances(PLAIN))
def test_without_marks_a_consistent_match_is_found(utterance):
    phones = phones_of(*utterance)
    words = [word for word, _ in utterance[0]]
    match = match_words(phones, words, PLAIN)
    assert match is not None
    assert phones_of(*match) == phones
    assert [word for word, _ in match[0]] == words


def test_phones_of_other_words_do_not_match():
    assert match_words(("a", "b"), ["A"], PLAIN) is None
    assert match_words(("a",), ["A", "A"], PLAIN) is None
    assert match_words(("SIL", "SIL"), [], PLAIN) is None
    assert match_words((), [], PLAIN) == ([], [False])


def test_planted_alignments_are_counted(tmp_path):
    topology = Topology(tuple(MARKED.real_phones))
    a, ab = ("A", ("b_B", "b_E")), ("AB", ("a_B", "b_E"))
    planted = {
        "one": ([a, ab, a], [True, False, True, False]),
        "two": ([ab], [False, True]),
        "none": ([], [True]),
    }
    lengths = torch.Generator().manual_seed(0)

    def states(phones):
        state_ids = []
        for phone in phones:
            number = MARKED.phones[phone]
            for state in range(topology.num_states(number)):
                frames = int(torch.randint(1, 4, (1,), generator=lengths))
                state_ids += [topology.state_id(number, state)] * frames
        return torch.tensor(state_ids)

    stored = {u: states(phones_of(*spoken)) for u, spoken in planted.items()}
    write_shard(tmp_path / "ali.000000.tar", stored, [])
    words = {u: [word for word, _ in spoken] for u, (spoken, _) in planted.items()}
    expected = PronunciationCounts()
    for spoken in planted.values():
        expected.add(*spoken)
    assert count_pronunciations(tmp_path, words | {"x": ["A"]}, MARKED, topology) == expected
    with pytest.raises(
        OtherLexiconError, match=r"one: the phones of the alignment .* Align it again"
    ):
        count_pronunciations(tmp_path, words | {"one": ["A"]}, MARKED, topology)
    del words["one"]
    assert ("AB", ("a_B", "b_E")) in {
        key[0] for key in count_pronunciations(tmp_path, words, MARKED, topology).pairs
    }
