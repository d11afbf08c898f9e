"""The survey of a new corpus and its warnings."""

import pytest

from tests.dummies import dummy_recording
from toolkit.corpus.config import CorpusConfig
from toolkit.corpus.manifest import (
    NO_SPEAKER,
    OTHER_SPEAKER,
    ManifestError,
    empty_recording,
    make_cut,
    speaker_of,
)
from toolkit.corpus.split import assemble
from toolkit.new_corpus.survey import (
    choose_parts,
    find_faults,
    summary_lines,
    survey,
    warning_lines,
)


def utterances(counts, seconds=36.0, fault=None):
    """Cuts by speaker: {speaker: number}."""
    cuts = []
    for speaker, count in counts.items():
        for number in range(count):
            recording = dummy_recording(0, duration=seconds)
            cuts.append(make_cut(f"{speaker}-{number}", recording, "a", speaker, fault=fault))
    return cuts


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["anything"], [["anything"], [], []]),
        (["train", "train_sp", "dev", "test", "lang"], [["train"], ["dev"], ["test"]]),
        (
            ["tr05", "dt05", "et05_real", "et05_simu"],
            [["tr05"], ["dt05"], ["et05_real", "et05_simu"]],
        ),
        (
            ["train_a", "train_b", "valid", "eval2000"],
            [["train_a", "train_b"], ["valid"], ["eval2000"]],
        ),
        (["trash", "Train", "cvs"], [["Train"], [], []]),
    ],
)
def test_parts_are_chosen_by_their_names(names, chosen):
    assert list(choose_parts(names).values()) == chosen


@pytest.mark.parametrize("names", [[], ["a", "b"]])
def test_a_corpus_without_a_training_part_is_refused(names):
    with pytest.raises(ManifestError, match="is called train"):
        choose_parts(names)


def test_speakers_are_held_out():
    parts = {"all": utterances({f"s{n}": 5 for n in range(20)})}
    corpus_survey = survey(parts, CorpusConfig("table"))
    assert corpus_survey.hours == pytest.approx({"train": 0.8, "dev": 0.1, "test": 0.1})
    assert corpus_survey.speakers == {"train": 16, "dev": 2, "test": 2}
    assert (corpus_survey.utterances, corpus_survey.held_out, corpus_survey.left_out) == (
        100,
        ("dev", "test"),
        (),
    )
    assert any("by speaker" in line for line in summary_lines(corpus_survey))
    splits = assemble(parts, corpus_survey.corpus, hold_out_test=True)
    assert {speaker_of(cut) for cut in splits["dev"]}.isdisjoint(map(speaker_of, splits["train"]))


def test_a_speaker_of_a_large_share_of_the_corpus_is_not_held_out():
    for number in range(8):  # whoever the digest draws first
        counts = {f"s{n}": 40 if n == number else 4 for n in range(8)}
        corpus_survey = survey({"train": utterances(counts)}, CorpusConfig("table"))
        assert corpus_survey.corpus.hold_out == "speakers"
        assert corpus_survey.speakers == {"train": 6, "dev": 1, "test": 1}
        assert corpus_survey.hours["train"] == pytest.approx(0.6)


@pytest.mark.parametrize("counts", [{"only": 40}, {f"s{n}": 10 for n in range(4)}])
def test_few_speakers_have_utterances_held_out(counts):
    corpus_survey = survey({"train": utterances(counts)}, CorpusConfig("table"))
    assert corpus_survey.corpus.hold_out == "utterances"
    assert corpus_survey.hours == pytest.approx({"train": 0.32, "dev": 0.04, "test": 0.04})
    assert any(
        "by utterance" in line and "expect more errors" in line
        for line in summary_lines(corpus_survey)
    )


def test_speakers_that_the_corpus_does_not_name_are_not_held_out():
    cuts = utterances({f"u{number}": 1 for number in range(40)})
    for cut in cuts:
        cut.custom = {**(cut.custom or {}), NO_SPEAKER: "no utt2spk"}
    corpus_survey = survey({"train": cuts}, CorpusConfig())
    assert corpus_survey.corpus.hold_out == "utterances"
    assert summary_lines(corpus_survey)[2].startswith(
        "speakers: 40 of 40 utterances name none; the recording"
    )
    assert "by utterance" in summary_lines(corpus_survey)[3]


def test_existing_parts_are_used():
    parts = {"train": utterances({"a": 10}), "dev": utterances({"b": 2}), "x": []}
    corpus_survey = survey(
        parts | {"test": utterances({"c": 3})}, CorpusConfig("table"), ["train_sp"]
    )
    assert corpus_survey.hours == pytest.approx({"train": 0.1, "dev": 0.02, "test": 0.03})
    assert (corpus_survey.held_out, corpus_survey.left_out) == ((), ("train_sp", "x"))
    assert "not used: train_sp, x" in summary_lines(corpus_survey)


def test_only_missing_parts_are_held_out():
    parts = {"train": utterances({f"s{n}": 4 for n in range(10)}), "test": utterances({"c": 3})}
    corpus_survey = survey(parts, CorpusConfig("table"))
    assert corpus_survey.held_out == ("dev",)
    assert corpus_survey.speakers == {"train": 9, "dev": 1, "test": 1}


def test_faults_and_long_utterances_are_warnings():
    broken = utterances({"z": 2}, fault=("bad-segment", "no seconds"))
    corpus_survey = survey({"train": utterances({"a": 9}) + broken}, CorpusConfig("table"))
    lines = warning_lines(corpus_survey)
    assert lines[0].startswith("caution: 2 bad-segment, left out, first z-0: no seconds (fix: ")
    assert any("9 utterances of 30 s and more" in line for line in lines)
    assert any("4.2 min of training speech" in line for line in lines)


@pytest.mark.parametrize(
    ("hours", "duration"), [(2.0, "2.00 h"), (0.1, "0.10 h"), (0.05, "3.0 min"), (0.005, "18 s")]
)
def test_less_than_a_tenth_of_an_hour_is_shown_in_minutes(hours, duration):
    parts = {"train": utterances({"a": 1}, 3600 * hours), "dev": utterances({"b": 1})}
    corpus_survey = survey(parts | {"test": utterances({"c": 1})}, CorpusConfig("table"))
    assert (
        f"splits: train {duration} (1 speaker), dev 36 s (1 speaker)"
        in summary_lines(corpus_survey)[1]
    )


def test_a_corpus_without_audio_is_refused_with_the_reason():
    cut = make_cut("u", empty_recording("x", "u"), "a", "s", fault=("missing-audio", "no x.wav"))
    with pytest.raises(ManifestError, match=r"no utterance has audio.*1 missing-audio.*no x\.wav"):
        survey({"train": [cut]}, CorpusConfig("table"))
    with pytest.raises(ManifestError, match="there is no utterance"):
        survey({"train": []}, CorpusConfig("table"))


def test_utterances_of_two_parts_may_have_the_same_ids():
    cuts = utterances({"s": 5}), utterances({"s": 5})
    corpus_survey = survey({"train_a": cuts[0], "train_b": cuts[1]}, CorpusConfig("table"))
    assert corpus_survey.faults.keys() == {"duplicate-id"}  # both parts are merged to train
    parts = {name: utterances({"s": 5}) for name in ("train", "dev", "test")}
    assert survey(parts, CorpusConfig("table")).faults.keys() == {"shared-id"}


def cut(id, text="a word", speaker="s", fault=None):
    return make_cut(id, dummy_recording(0), text, speaker, fault=fault)


def test_a_clean_corpus_has_no_faults():
    assert find_faults([cut("a"), cut("b", "слово", "t"), cut("c", "हिन्दी", "u")]) == {}


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("", "empty-transcript", "1 empty-transcript, left out, first b: '' (fix: write what"),
        ("...", "empty-transcript", "first b: '...'"),
        ("um 12 Uhr", "digits", "1 transcript with digits, first b: '12' (fix: write numbers"),
        ("१२ बजे", "digits", "first b: '१२'"),
        ("das MÃ¤dchen", "garbled letters", "first b: 'MÃ¤dchen' (fix: a program read UTF-8 as"),
        ("so [lachen]", "tag", "1 tag, first b: '[lachen]' (fix: none needed"),
        ("бiлого", "mixed-alphabets", "first b: 'бiлого' (fix: type the letters that look alike"),
    ],
)
def test_faults_of_transcripts(text, kind, message):
    faults = find_faults([cut("a"), cut("b", text)])
    assert faults.keys() == {kind}
    assert message in faults[kind]


def test_faults_of_the_reader_are_counted():
    cuts = [cut(id, "", fault=("missing-audio", f"no {id}.wav")) for id in "ab"]
    assert find_faults(cuts) == {
        "missing-audio": "2 missing-audio, left out, first a: no a.wav "
        "(fix: add the file, correct its path, or delete the line)"
    }


def test_ids_and_speakers():
    cuts = [cut("a"), cut("a"), cut("b", speaker="Ann"), cut("c", speaker="ann"), cut("d")]
    cuts[-1].custom = {NO_SPEAKER: "line 5"}
    cuts[-2].custom = {OTHER_SPEAKER: "ann, not ben"}
    faults = find_faults(cuts)
    assert faults.keys() == {"duplicate-id", "no-speaker", "two-speakers", "like-speakers"}
    assert faults["duplicate-id"].startswith("1 duplicate-id, left out, first a: copy 2: ")
    assert faults["no-speaker"].startswith("1 no-speaker, first d: line 5 ")
    assert faults["two-speakers"].startswith("1 two-speakers, first c: ann, not ben ")
    assert "'Ann' and 'ann'" in faults["like-speakers"]


def test_an_id_in_two_splits_is_a_fault_but_not_left_out():
    faults = find_faults([cut("1"), cut("2"), cut("2")], [cut("1"), cut("3")], [cut("1")])
    assert faults.keys() == {"duplicate-id", "shared-id"}
    assert faults["duplicate-id"].startswith("1 duplicate-id, left out, first 2: copy 2: ")
    assert faults["shared-id"].startswith("1 shared-id, first 1: in 3 splits (fix: see whether")


def piece(id, start, end, number=0):
    return make_cut(id, dummy_recording(number, duration=9.0), "a word", "s", start, end)


def test_segments_without_an_end_are_a_fault_among_others():
    pieces = [piece("a", 0.0, 2.5), piece("b", 2.5, 5.0), piece("c", 5.0, 9.0)]
    whole = [piece("d", 0.0, None, 1), piece("e", 0.0, None, 1)]
    assert find_faults([*pieces, *whole]).keys() == set()
    endless = [piece(id, start, None) for id, start in (("a", 0.5), ("b", 2.5), ("c", 5.0))]
    text = find_faults(endless[:1], endless[1:])["no-end"]
    assert text.startswith("2 utterances last to the end of the recording although others begin")
    assert "first a: 0.5 to 9 s (fix: give each utterance an end" in text
