import pytest

from tests.dummies import dummy_recording
from toolkit.corpus.manifest import NO_SPEAKER, OTHER_SPEAKER, make_cut
from toolkit.new_corpus.faults import find_faults


def cut(id, text="a word", speaker="s", fault=None):
    return make_cut(id, dummy_recording(0), text, speaker, fault=fault)


def test_a_clean_corpus_has_none():
    assert find_faults([cut("a"), cut("b", "слово", "t"), cut("c", "हिन्दी", "u")]) == {}


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("", "empty-transcript", "1 empty-transcript, left out, first b: '' (fix: write what"),
        ("...", "empty-transcript", "first b: '...'"),
        ("um 12 Uhr", "digits", "1 transcript with digits, first b: '12' (fix: write numbers"),
        ("१२ बजे", "digits", "first b: '१२'"),
        ("das MÃ¤dchen", "garbled letters", "first b: 'MÃ¤dchen' (fix: they are UTF-8 that"),
        ("so [lachen]", "tag", "1 tag, first b: '[lachen]' (fix: nothing"),
        ("бiлого", "mixed-alphabets", "first b: 'бiлого' (fix: type the letters that look alike"),
    ],
)
def test_faults_of_transcripts(text, kind, said):
    found = find_faults([cut("a"), cut("b", text)])
    assert found.keys() == {kind}
    assert said in found[kind]


def test_what_was_found_in_reading_is_counted():
    cuts = [cut(id, "", fault=("missing-audio", f"no {id}.wav")) for id in "ab"]
    assert find_faults(cuts) == {
        "missing-audio": "2 missing-audio, left out, first a: no a.wav "
        "(fix: add the file, correct its path, or delete the line)"
    }


def test_ids_and_speakers():
    cuts = [cut("a"), cut("a"), cut("b", speaker="Ann"), cut("c", speaker="ann"), cut("d")]
    cuts[-1].custom = {NO_SPEAKER: "line 5"}
    cuts[-2].custom = {OTHER_SPEAKER: "ann, not ben"}
    found = find_faults(cuts)
    assert found.keys() == {"duplicate-id", "no-speaker", "two-speakers", "like-speakers"}
    assert found["duplicate-id"].startswith("1 duplicate-id, left out, first a: copy 2 ")
    assert found["no-speaker"].startswith("1 no-speaker, first d: line 5 ")
    assert found["two-speakers"].startswith("1 two-speakers, first c: ann, not ben ")
    assert "'Ann' and 'ann'" in found["like-speakers"]


def test_the_same_id_in_two_splits_is_left_out_of_neither():
    found = find_faults([cut("1"), cut("2"), cut("2")], [cut("1"), cut("3")], [cut("1")])
    assert found.keys() == {"duplicate-id", "shared-id"}
    assert found["duplicate-id"].startswith("1 duplicate-id, left out, first 2: copy 2 ")
    assert found["shared-id"].startswith("1 shared-id, first 1: in 3 splits (fix: see whether")


def piece(id, start, end, number=0):
    return make_cut(id, dummy_recording(number, duration=9.0), "a word", "s", start, end)


def test_pieces_of_a_recording_that_lack_an_end():
    pieces = [piece("a", 0.0, 2.5), piece("b", 2.5, 5.0), piece("c", 5.0, 9.0)]
    whole = [piece("d", 0.0, None, 1), piece("e", 0.0, None, 1)]
    assert find_faults([*pieces, *whole]).keys() == set()
    endless = [piece(id, start, None) for id, start in (("a", 0.5), ("b", 2.5), ("c", 5.0))]
    text = find_faults(endless[:1], endless[1:])["no-end"]
    assert text.startswith("2 utterances last to the end of the recording although others begin")
    assert "first a: 0.5 to 9 s (fix: give each an end" in text
