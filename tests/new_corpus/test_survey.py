import pytest

from tests.dummies import dummy_recording
from toolkit.corpus.config import CorpusConfig
from toolkit.corpus.manifest import NO_SPEAKER, ManifestError, empty_recording, make_cut, speaker_of
from toolkit.corpus.split import assemble
from toolkit.new_corpus.describe import cautions, describe
from toolkit.new_corpus.survey import choose_parts, survey


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
def test_parts_by_their_names(names, chosen):
    assert list(choose_parts(names).values()) == chosen


@pytest.mark.parametrize("names", [[], ["a", "b"]])
def test_no_part_to_train_on(names):
    with pytest.raises(ManifestError, match="is called train"):
        choose_parts(names)


def test_speakers_are_held_out():
    parts = {"all": utterances({f"s{n}": 5 for n in range(20)})}
    found = survey(parts, CorpusConfig("table"))
    assert found.hours == pytest.approx({"train": 0.8, "dev": 0.1, "test": 0.1})
    assert found.speakers == {"train": 16, "dev": 2, "test": 2}
    assert (found.utterances, found.held_out, found.left_out) == (100, ("dev", "test"), ())
    assert any("by speaker" in line for line in describe(found))
    again = assemble(parts, found.corpus, hold_out_test=True)
    assert {speaker_of(cut) for cut in again["dev"]}.isdisjoint(map(speaker_of, again["train"]))


def test_a_speaker_who_has_much_of_the_corpus_stays_in_training():
    for number in range(8):  # whoever the digest draws first
        counts = {f"s{n}": 40 if n == number else 4 for n in range(8)}
        found = survey({"train": utterances(counts)}, CorpusConfig("table"))
        assert found.corpus.hold_out == "speakers"
        assert found.speakers == {"train": 6, "dev": 1, "test": 1}
        assert found.hours["train"] == pytest.approx(0.6)


@pytest.mark.parametrize("counts", [{"only": 40}, {f"s{n}": 10 for n in range(4)}])
def test_few_speakers_have_utterances_held_out(counts):
    found = survey({"train": utterances(counts)}, CorpusConfig("table"))
    assert found.corpus.hold_out == "utterances"
    assert found.hours == pytest.approx({"train": 0.32, "dev": 0.04, "test": 0.04})
    assert any("by utterance" in line and "expect more errors" in line for line in describe(found))


def test_speakers_that_the_corpus_does_not_name_are_not_held_out():
    cuts = utterances({f"u{number}": 1 for number in range(40)})
    for cut in cuts:
        cut.custom = {**(cut.custom or {}), NO_SPEAKER: "no utt2spk"}
    found = survey({"train": cuts}, CorpusConfig())
    assert found.corpus.hold_out == "utterances"
    assert describe(found)[2].startswith("speakers: 40 of 40 utterances name none; the recording")
    assert "by utterance" in describe(found)[3]


def test_parts_of_their_own_are_kept():
    parts = {"train": utterances({"a": 10}), "dev": utterances({"b": 2}), "x": []}
    found = survey(parts | {"test": utterances({"c": 3})}, CorpusConfig("table"), ["train_sp"])
    assert found.hours == pytest.approx({"train": 0.1, "dev": 0.02, "test": 0.03})
    assert (found.held_out, found.left_out) == ((), ("train_sp", "x"))
    assert "not used: train_sp, x" in describe(found)


def test_only_what_lacks_is_held_out():
    parts = {"train": utterances({f"s{n}": 4 for n in range(10)}), "test": utterances({"c": 3})}
    found = survey(parts, CorpusConfig("table"))
    assert found.held_out == ("dev",)
    assert found.speakers == {"train": 9, "dev": 1, "test": 1}


def test_faults_and_long_utterances_are_told():
    broken = utterances({"z": 2}, fault=("bad-segment", "no seconds"))
    found = survey({"train": utterances({"a": 9}) + broken}, CorpusConfig("table"))
    lines = cautions(found)
    assert lines[0].startswith("caution: 2 bad-segment, left out, first z-0: no seconds (fix: ")
    assert any("9 utterances of 30 s and more" in line for line in lines)
    assert any("4.2 min to train on" in line for line in lines)


@pytest.mark.parametrize(
    ("hours", "shown"), [(2.0, "2.00 h"), (0.1, "0.10 h"), (0.05, "3.0 min"), (0.005, "18 s")]
)
def test_less_than_a_tenth_of_an_hour_is_told_in_minutes(hours, shown):
    parts = {"train": utterances({"a": 1}, 3600 * hours), "dev": utterances({"b": 1})}
    found = survey(parts | {"test": utterances({"c": 1})}, CorpusConfig("table"))
    assert f"splits: train {shown} (1 speaker), dev 36 s (1 speaker)" in describe(found)[1]


def test_a_corpus_without_audio_is_refused_with_the_reason():
    cut = make_cut("u", empty_recording("x", "u"), "a", "s", fault=("missing-audio", "no x.wav"))
    with pytest.raises(ManifestError, match=r"no utterance has audio.*1 missing-audio.*no x\.wav"):
        survey({"train": [cut]}, CorpusConfig("table"))
    with pytest.raises(ManifestError, match="there is no utterance"):
        survey({"train": []}, CorpusConfig("table"))


def test_parts_may_number_their_utterances_alike():
    again = utterances({"s": 5}), utterances({"s": 5})
    found = survey({"train_a": again[0], "train_b": again[1]}, CorpusConfig("table"))
    assert found.faults.keys() == {"duplicate-id"}  # both parts are merged to train
    parts = {name: utterances({"s": 5}) for name in ("train", "dev", "test")}
    assert survey(parts, CorpusConfig("table")).faults.keys() == {"shared-id"}
