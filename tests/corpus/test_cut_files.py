import gzip
import json

import numpy as np
import pytest
import soundfile
from lhotse import (
    CutSet,
    MonoCut,
    Recording,
    RecordingSet,
    SupervisionSegment,
    SupervisionSet,
)
from lhotse.utils import fastcopy

from local import cuts as reader
from toolkit.corpus.config import CorpusConfig
from toolkit.corpus.cut_files import cut_files, read_cut_file
from toolkit.corpus.manifest import (
    ManifestError,
    UnsafeCutError,
    channel_name,
    channel_of,
    read_cuts,
    speaker_of,
    text_of,
    write_cuts,
)
from toolkit.features.cut_audio import load_cut_audio


def cut(path, name, text="HELLO", speaker="anna", start=0.0, duration=None, segments=()):
    recording = Recording.from_file(path, recording_id=f"rec-{name}")
    duration = recording.duration - start if duration is None else duration
    segments = segments or [(name, 0.0, duration, text)]
    supervisions = [
        SupervisionSegment(id, recording.id, begin, seconds, text=words, speaker=speaker)
        for id, begin, seconds, words in segments
    ]
    return MonoCut(name, start, duration, 0, supervisions, recording=recording)


def test_utterances_of_a_file_of_cuts(audio, tmp_path):
    path = audio(tmp_path / "audio/long.wav", seconds=4.0)
    cuts = [
        cut(path, "whole", "GOOD  MORNING"),
        cut(path, "part", start=1.0, duration=0.5),
        cut(path, "two", start=1.0, segments=[("a", 0.0, 1.0, "ONE"), ("b", 2.5, 0.55, "TWO")]),
        cut(
            path, "cutoff", start=1.0, segments=[("c", -0.5, 1.0, "HALF"), ("d", 1.0, 9.0, "MORE")]
        ),
        cut(path, "nobody", speaker=None),
        MonoCut("silent", 0.0, 1.0, 0, [], recording=Recording.from_file(path)),
    ]
    CutSet.from_cuts(cuts).to_file(tmp_path / "x_cuts.jsonl.gz")
    utterances = {
        utterance.id: utterance for utterance in read_cut_file(tmp_path / "x_cuts.jsonl.gz")
    }
    times = {name: (utterance.start, utterance.end) for name, utterance in utterances.items()}
    assert times["whole"] == times["nobody"] == (0.0, 4.0)
    assert (times["part"], times["a"], times["b"]) == ((1.0, 1.5), (1.0, 2.0), (3.5, 4.0))
    assert [text_of(utterances[name]) for name in ("whole", "a", "b")] == [
        "GOOD MORNING",
        "ONE",
        "TWO",
    ]
    assert speaker_of(utterances["part"]) == "anna"
    assert "names no speaker" in utterances["nobody"].custom["no_speaker"]
    assert speaker_of(utterances["nobody"]) == utterances["nobody"].recording_id
    assert utterances["silent"].custom["fault"] == "missing-transcript"
    for name in "cd":
        assert utterances[name].custom["fault"] == "bad-segment"


def test_relative_names_are_looked_up_above_the_file(audio, tmp_path):
    audio(tmp_path / "download/a.wav")
    fields = cut(tmp_path / "download/a.wav", "a").to_dict()
    fields["recording"]["sources"][0]["source"] = "download/a.wav"
    file = tmp_path / "data/manifests/cuts_train.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(fields))
    (utterance,) = read_cut_file(file)
    assert utterance.recording.sources[0].source == str(tmp_path / "download/a.wav")


def test_ids_have_no_white_space(audio, tmp_path):
    path = audio(tmp_path / "a.wav", seconds=2.0)
    parts = [("part\u00a01", 0.0, 1.0, "ONE"), ("part  2", 1.0, 1.0, "TWO")]
    cuts = [cut(path, "a long talk"), cut(path, "x y", segments=parts)]
    CutSet.from_cuts(cuts).to_file(tmp_path / "cuts.jsonl")
    utterances = read_cut_file(tmp_path / "cuts.jsonl")
    assert [utterance.id for utterance in utterances] == ["a_long_talk", "part_1", "part_2"]
    assert [text_of(utterance) for utterance in utterances] == ["HELLO", "ONE", "TWO"]


def test_numbers_in_the_place_of_names_and_texts_are_read_as_text(audio, tmp_path):
    path = audio(tmp_path / "a.wav", seconds=2.0)
    fields = cut(path, "x", segments=[("a", 0.0, 1.0, "ONE"), ("b", 1.0, 1.0, "TWO")]).to_dict()
    fields["recording"]["id"] = 7
    for number, supervision in enumerate(fields["supervisions"]):
        supervision |= {"id": number, "speaker": number, "text": 3}
    (tmp_path / "cuts_train.jsonl").write_text(json.dumps(fields))
    write_cuts(read_cut_file(tmp_path / "cuts_train.jsonl"), tmp_path / "train.jsonl")
    utterances = read_cuts(tmp_path / "train.jsonl")
    assert [(c.id, speaker_of(c), text_of(c)) for c in utterances] == [
        ("0", "0", "3"),
        ("1", "1", "3"),
    ]
    assert all(c.custom is None and c.recording_id == "7" for c in utterances)


@pytest.mark.parametrize("sources", [[], [{"type": "file", "channels": [0], "source": 5}]])
def test_a_recording_without_a_name_of_a_file_is_refused(audio, tmp_path, sources):
    fields = cut(audio(tmp_path / "a.wav"), "a").to_dict()
    fields["recording"]["sources"] = sources
    (tmp_path / "cuts.jsonl").write_text(json.dumps(fields))
    with pytest.raises(ManifestError, match=r"cuts\.jsonl:1: a names no audio file; write it"):
        read_cut_file(tmp_path / "cuts.jsonl")


def test_parts_are_named_by_their_files(tmp_path):
    for name in (
        "librispeech_cuts_train-clean-5.jsonl.gz",
        "dev_cuts.jsonl",
        "cuts_test.jsonl",
        "recordings_train.jsonl.gz",
        "notes.txt",
    ):
        (tmp_path / name).write_bytes(b"")
    assert sorted(cut_files(tmp_path)) == ["dev", "test", "train-clean-5"]
    (tmp_path / "cuts_dev.jsonl").write_bytes(b"")
    with pytest.raises(ManifestError, match="both the part dev of the corpus"):
        cut_files(tmp_path)
    assert cut_files(tmp_path / "cuts_dev.jsonl") == {"train": tmp_path / "cuts_dev.jsonl"}
    uncut = tmp_path / "uncut"
    uncut.mkdir()
    (uncut / "librispeech_recordings_train-clean-5.jsonl.gz").write_bytes(b"")
    (uncut / "supervisions_dev.jsonl").write_bytes(b"")
    with pytest.raises(ManifestError, match=r"contains no file of cuts.*lhotse cut simple"):
        cut_files(uncut)
    (uncut / "train.jsonl").write_bytes(b"")
    assert [*cut_files(uncut)] == ["train"]


def test_the_reader_holds_out_missing_splits(audio, tmp_path):
    cuts = [
        cut(audio(tmp_path / f"{n}.wav", seconds=0.2, seed=n), f"u{n}", speaker=f"s{n % 5}")
        for n in range(20)
    ]
    CutSet.from_cuts(cuts).to_file(tmp_path / "cuts_all.jsonl.gz")
    CutSet.from_cuts(cuts[:2]).to_file(tmp_path / "sp_cuts.jsonl.gz")
    for root, train in ((tmp_path, "all"), (tmp_path / "cuts_all.jsonl.gz", "train*")):
        corpus = CorpusConfig("cuts", train=train, dev_speakers=1, test_speakers=1)
        splits = reader.manifests(corpus, root)
        sizes = {name: len(split_cuts) for name, split_cuts in splits.items()}
        assert sizes == {"train": 12, "dev": 4, "test": 4}
    with pytest.raises(ManifestError, match="no file of cuts"):
        reader.manifests(CorpusConfig("cuts"), tmp_path)


def test_a_few_unusable_lines_are_findings(audio, tmp_path):
    """The other cuts are read; a cut that would run a command still refuses the file."""
    path = audio(tmp_path / "a.wav")
    mixed = cut(path, "mixed").mix(cut(path, "noise")).to_dict()
    usable = [json.dumps(cut(path, name).to_dict()) for name in "abcd"]
    file = tmp_path / "cuts.jsonl"
    lines = [usable[0], usable[1][:40], usable[2], json.dumps(mixed), '{"id": "x"}', usable[3]]
    file.write_text("\n".join(lines))
    cuts = {cut.id: cut for cut in read_cut_file(file)}
    assert list(cuts) == ["a", "c", "d", "line-2", "line-4", "line-5"]
    faults = {id: (cut.custom or {}).get("fault") for id, cut in cuts.items()}
    assert faults == {id: "bad-line" if id.startswith("line-") else None for id in cuts}
    assert cuts["line-2"].custom["fault_detail"].startswith(f"{file}:2: not a cut (")
    assert (
        cuts["line-4"].custom["fault_detail"].startswith(f"{file}:4: {mixed['id']} is a MixedCut")
    )
    assert "no-speaker" not in str([cut.custom for cut in cuts.values()])
    fields = cut(path, "piped").to_dict()
    fields["recording"]["sources"][0] |= {"type": "command", "source": "touch x"}
    file.write_text("\n".join([*usable, json.dumps(fields)]))
    with pytest.raises(UnsafeCutError, match="shell command"):
        read_cut_file(file)


def test_too_many_unusable_lines_refuse_the_file(audio, tmp_path):
    usable = json.dumps(cut(audio(tmp_path / "a.wav"), "a").to_dict())
    file = tmp_path / "cuts.jsonl"
    file.write_text("\n".join([usable] * 80 + ["{}"] * 20))
    assert len(read_cut_file(file)) == 100
    file.write_text("\n".join([usable] * 80 + ["{}"] * 21))
    with pytest.raises(ManifestError, match=r"cuts\.jsonl:81: not a cut"):
        read_cut_file(file)


def test_unusable_cuts_are_refused(audio, tmp_path):
    path = audio(tmp_path / "a.wav")
    file = tmp_path / "cuts.jsonl"
    CutSet.from_cuts([cut(path, "loud").perturb_volume(2.0)]).to_file(file)
    with pytest.raises(ManifestError, match=r"cuts\.jsonl:1: loud_vp2.0 is changed by Volume"):
        read_cut_file(file)
    mixed = cut(path, "mixed").mix(cut(path, "noise"))
    CutSet.from_cuts([mixed]).to_file(file)
    with pytest.raises(ManifestError, match="MixedCut"):
        read_cut_file(file)
    fields = cut(path, "piped").to_dict()
    fields["recording"]["sources"][0] |= {"type": "command", "source": "touch x"}
    file.write_text(json.dumps(fields))
    with pytest.raises(UnsafeCutError, match="shell command"):
        read_cut_file(file)
    file.write_text("{}\n")
    with pytest.raises(ManifestError, match=r"cuts\.jsonl:1: not a cut"):
        read_cut_file(file)
    broken = tmp_path / "cuts.jsonl.gz"
    broken.write_bytes(gzip.compress(b"{}" * 100)[:20])
    with pytest.raises(ManifestError, match=r"cuts\.jsonl\.gz: "):
        read_cut_file(broken)


def test_copies_at_other_speeds_are_left_out(audio, tmp_path, caplog):
    original = cut(audio(tmp_path / "a.wav"), "a")
    CutSet.from_cuts([original, original.perturb_speed(1.1), original.perturb_speed(0.9)]).to_file(
        tmp_path / "cuts.jsonl"
    )
    assert [utterance.id for utterance in read_cut_file(tmp_path / "cuts.jsonl")] == ["a"]
    assert "left out 2 speed-perturbed copies" in caplog.text


def test_channels_may_be_separate_files(audio, tmp_path):
    first, second = (audio(tmp_path / f"{n}.wav", seed=n) for n in range(2))
    fields = cut(first, "a").to_dict()
    fields["recording"]["sources"].append({"type": "file", "channels": [1], "source": str(second)})
    fields["channel"] = fields["supervisions"][0]["channel"] = 1
    (tmp_path / "cuts.jsonl").write_text(json.dumps(fields))
    (utterance,) = read_cut_file(tmp_path / "cuts.jsonl")
    assert utterance.recording.sources[0].source == str(second)
    assert "fault" not in (utterance.custom or {})


def test_a_supervision_of_another_channel_than_its_cut_is_refused(audio, tmp_path):
    """Otherwise its words would be trained on the other speaker's channel."""
    fields = cut(audio(tmp_path / "a.wav", channels=2), "a").to_dict()
    fields["supervisions"][0]["channel"] = 1
    (tmp_path / "cuts.jsonl").write_text(json.dumps(fields))
    with pytest.raises(ManifestError, match="a has channel 0, but its supervision a has channel 1"):
        read_cut_file(tmp_path / "cuts.jsonl")
    fields["supervisions"][0]["channel"] = [0, 1]
    (tmp_path / "cuts.jsonl").write_text(json.dumps(fields))
    assert read_cut_file(tmp_path / "cuts.jsonl")


@pytest.mark.parametrize(
    ("seconds", "kind", "end"),
    [
        (20.0, ("fault", "bad-segment"), None),
        (15.3, ("note", "trimmed-segment"), 14.95),
        (14.955, None, 14.95),
        (14.95, None, 14.95),
        (14.5, None, 14.95),
        (10.0, ("note", "other-length"), 14.95),
    ],
)
def test_cuts_of_whole_files_are_compared_with_their_length(audio, tmp_path, seconds, kind, end):
    fields = cut(audio(tmp_path / "a.wav", 14.95), "a").to_dict()
    fields["recording"] |= {"num_samples": round(seconds * 16000), "duration": seconds}
    fields["duration"] = fields["supervisions"][0]["duration"] = seconds
    (tmp_path / "cuts.jsonl").write_text(json.dumps(fields))
    (utterance,) = read_cut_file(tmp_path / "cuts.jsonl")
    marks = {
        name: value for name, value in (utterance.custom or {}).items() if "detail" not in name
    }
    assert marks == dict([kind] if kind else [])
    assert utterance.duration == 0 if end is None else utterance.end == end


@pytest.mark.parametrize("suffix", ["json", "json.gz", "jsonl", "jsonl.gz"])
@pytest.mark.parametrize("kind", ["cuts", "supervisions"])
def test_arrays_and_supervisions_are_read_as_lines_of_cuts(audio, tmp_path, suffix, kind):
    path = audio(tmp_path / "a.wav", seconds=4.0, channels=2)
    original = cut(path, "x", segments=[("a", 0.5, 1.0, "ONE"), ("b", 2.0, 1.5, "TWO")])
    original.supervisions[1].speaker = "ben"
    original = fastcopy(
        original, channel=1, supervisions=[fastcopy(s, channel=1) for s in original.supervisions]
    )
    expected = tmp_path / "expected.jsonl"
    CutSet.from_cuts([original]).to_file(expected)
    folder = tmp_path / "manifests"
    folder.mkdir()
    if kind == "cuts":
        CutSet.from_cuts([original]).to_file(folder / f"mine_cuts_train.{suffix}")
    else:
        RecordingSet.from_recordings([original.recording]).to_file(
            folder / f"recordings_train.{suffix}"
        )
        SupervisionSet.from_segments(original.supervisions).to_file(
            folder / f"supervisions_train.{suffix}"
        )
    files = cut_files(folder)
    assert list(files) == ["train"]
    read = [utterance.to_dict() for utterance in read_cut_file(files["train"])]
    assert read == [utterance.to_dict() for utterance in read_cut_file(expected)]
    assert [fields["channel"] for fields in read] == [1, 1]


@pytest.mark.parametrize(
    ("content", "message"),
    [("{}", "not a list"), ("[1]", "item 1: not a cut"), ("[", "Expecting"), ('["a"', "Expecting")],
)
def test_an_array_of_something_else_is_refused(tmp_path, content, message):
    (tmp_path / "cuts.json").write_text(content)
    with pytest.raises(ManifestError, match=message):
        read_cut_file(tmp_path / "cuts.json")


def test_supervisions_of_unknown_recordings_are_refused(audio, tmp_path):
    utterance = cut(audio(tmp_path / "a.wav"), "x")
    RecordingSet.from_recordings([]).to_file(tmp_path / "recordings.json")
    SupervisionSet.from_segments(utterance.supervisions).to_file(tmp_path / "supervisions.json")
    with pytest.raises(ManifestError, match=r"item 1: .*recordings\.json has no recording 'rec-x'"):
        read_cut_file(tmp_path / "supervisions.json")


def test_a_cut_that_lhotse_resamples_is_read(audio, tmp_path):
    path = audio(tmp_path / "a.wav", rate=44100)
    CutSet.from_cuts([cut(path, "a").resample(16000)]).to_file(tmp_path / "cuts.jsonl")
    (utterance,) = read_cut_file(tmp_path / "cuts.jsonl")
    assert (utterance.sampling_rate, utterance.duration, utterance.custom) == (44100, 1.0, None)


@pytest.mark.parametrize("channel", [0, 1, 2])
def test_cuts_pick_a_channel(audio, tmp_path, channel):
    path, file = audio(tmp_path / "a.wav", channels=2), tmp_path / "cuts.jsonl"
    fields = cut(path, "a").to_dict() | {"channel": channel}
    fields["supervisions"][0]["channel"] = channel
    file.write_text(json.dumps(fields))
    (utterance,) = read_cut_file(file)
    if channel == 2:
        assert utterance.custom["fault"] == "no-channel"
        assert f"no channel 3, but 2 channels in {path}" in utterance.custom["fault_detail"]
        return
    assert (channel_of(utterance), channel_name(utterance)) == (channel, str(channel + 1))
    samples = soundfile.read(path, dtype="float32")[0]
    assert np.array_equal(load_cut_audio(utterance).numpy(), samples[:, channel])
