"""The check of a corpus."""

import json
from itertools import groupby

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from toolkit.corpus.check import CorpusError, Runs, check, decode, read_audio_info
from toolkit.corpus.config import CheckConfig, CorpusConfig
from toolkit.corpus.findings import FINDING_KINDS
from toolkit.corpus.manifest import (
    make_cut,
    probe_recording,
    read_cuts,
    rewrite_texts,
    text_of,
    write_cuts,
)
from toolkit.corpus.split import assemble
from toolkit.kaldi.data_dir import read_kaldi_dir
from toolkit.lang.text_policy import TextPolicy

LEXICON = {"ONE": 3, "TWO": 2, "THREE": 3}


@pytest.fixture
def corpus(audio, truncate, tmp_path):
    """Build manifests: corpus.add(split, id, ...), corpus.check() -> (headline, findings)."""

    class Corpus:
        def __init__(self):
            self.cuts = {}

        def add(self, split, id, text="ONE TWO", speaker=None, path=None, broken=False, **options):
            if path is None:
                options.setdefault("seed", sum(map(len, self.cuts.values())))
                path = audio(tmp_path / f"{split}-{id}.flac", **options)
            if broken:
                truncate(path)
            recording, fault = probe_recording(path, id)
            fault = fault and ("unreadable-audio", fault)
            cut = make_cut(id, recording, text, speaker or f"{split}-{id}", fault=fault)
            self.cuts.setdefault(split, []).append(cut)
            return cut

        def fill(self, split, count=3):
            for number in range(count):
                self.add(split, f"good{number}", seconds=0.5)

        def check(self, jobs=1, **config):
            self.paths = {split: tmp_path / "data" / f"{split}.jsonl" for split in self.cuts}
            for split, cuts in self.cuts.items():
                write_cuts(cuts, self.paths[split])
            self.out = tmp_path / f"check{jobs}"
            headline = check(self.paths, LEXICON, self.out, CheckConfig(**config), jobs)
            report = json.loads((self.out / "report.json").read_text())
            self.text = (self.out / "report.txt").read_text()
            return headline, report["findings"]

        def kinds(self, **config):
            return {(item["kind"], item["split"], item["id"]) for item in self.check(**config)[1]}

        def left(self, split):
            excluded = self.out / "excluded.tsv"
            return [cut.id for cut in read_cuts(self.paths[split], excluded)]

    return Corpus()


def test_tags_are_left_out_of_transcripts_and_found(corpus):
    corpus.fill("train")
    tagged = [corpus.add("train", "laugh", "one [laughter] two <a noise>", seconds=0.5)]
    rewrite_texts(tagged, TextPolicy().transcript, TextPolicy().found_tags)
    assert text_of(tagged[0]) == "ONE TWO"
    corpus.add("train", "digits", "ONE 12 TWO 3", seconds=0.5)
    _, findings = corpus.check()
    details = {item["kind"]: item["detail"] for item in findings if item["kind"] != "oov"}
    assert details["tag"] == "[laughter] <a noise>"
    assert details["bad-characters"] == "1 2 3 in '12', '3'"


def test_a_clean_corpus_has_no_findings(corpus):
    corpus.fill("train")
    corpus.fill("dev")
    for number in range(3):  # the same ids in both splits are worth a warning
        corpus.cuts["dev"][number].id = f"dev{number}"
    headline, findings = corpus.check()
    assert findings == []
    assert headline == {
        "utterances": 6,
        "excluded": 0,
        "errors": 0,
        "warnings": 0,
        "oov_percent": 0.0,
        "hours_train": 0.0,
    }
    assert "No faults found." in corpus.text
    assert len(corpus.left("train")) == 3


def test_every_fault_is_named_once(corpus, audio, tmp_path):
    (tmp_path / "empty.flac").touch()
    corpus.fill("train")
    corpus.add("train", "cut", broken=True, seconds=3.0)
    corpus.add("train", "empty", path=tmp_path / "empty.flac")
    corpus.add("train", "zero", path=audio(tmp_path / "zero.wav", seconds=0.0))
    corpus.add("train", "telephone", rate=8000, channels=2)
    corpus.add("train", "wordless", text="")
    corpus.add("train", "foreign", text="CUATRO CINCO", seconds=2.0)
    corpus.add("train", "partly", text="ONE CUATRO", seconds=2.0)
    corpus.add("train", "noise", text="<> 123")
    corpus.add("train", "fifty", text="ONE " * 50)
    corpus.add("train", "long", seconds=5.0)
    corpus.add("train", "silent", level=0.0)
    scaled = 3000 * np.random.default_rng(0).standard_normal(16000).astype(np.float32)
    soundfile.write(tmp_path / "scaled.wav", scaled, 16000, subtype="FLOAT")
    corpus.add("train", "scaled", path=tmp_path / "scaled.wav")
    for name, seed in (("open", 1), ("chained", 2)):
        noise = 0.1 * np.random.default_rng(seed).standard_normal(48000)
        soundfile.write(tmp_path / f"{name}.ogg", noise, 16000, subtype="VORBIS")
        content = (tmp_path / f"{name}.ogg").read_bytes()
        content = content[: content.rindex(b"OggS")] if name == "open" else content + content
        (tmp_path / f"{name}.ogg").write_bytes(content)
        corpus.add("train", name, path=tmp_path / f"{name}.ogg")
    corpus.add("train", "good0", seed=100)
    expected = {
        ("truncated-audio", "cut"),
        ("unreadable-audio", "empty"),
        ("empty-audio", "zero"),
        ("other-rate", "telephone"),
        ("many-channels", "telephone"),
        ("empty-transcript", "wordless"),
        ("all-oov", "foreign"),
        ("oov", "partly"),
        ("all-oov", "noise"),
        ("unspellable", "noise"),
        ("bad-characters", "noise"),
        ("too-short", "fifty"),
        ("too-long", "long"),
        ("silent-audio", "silent"),
        ("scaled-samples", "scaled"),
        ("open-end", "open"),
        ("truncated-audio", "chained"),
        ("duplicate-id", "good0"),
    }
    assert {(k, id) for k, _, id in corpus.kinds(max_seconds=4.0)} == expected
    assert corpus.left("train") == [
        "good0", "good1", "good2", "telephone", "foreign", "partly", "open"
    ]  # fmt: skip
    for kind, id in expected:
        section = corpus.text[corpus.text.index(f" {kind}: ") :].split("\n\n")[0]
        assert f"  train  {id}  " in section
        assert FINDING_KINDS[kind].fix in section


def test_padding_and_clipping_are_warnings(corpus, tmp_path):
    noise = 0.1 * np.random.default_rng(0).standard_normal(48000)
    padded, clipped, peaks = noise.copy(), (20 * noise).clip(-1, 1), noise.copy()
    padded[30000:36000] = 0
    peaks[::500] = 1
    for name, samples in {"padded": padded, "clipped": clipped, "peaks": peaks}.items():
        soundfile.write(tmp_path / f"{name}.wav", samples, 16000)
        corpus.add("train", name, path=tmp_path / f"{name}.wav")
    kinds = {(kind, id) for kind, _, id in corpus.kinds()}
    assert kinds == {("digital-silence", "padded"), ("clipped-audio", "clipped")}
    assert "padded.wav: 12 % of the samples" in corpus.text
    assert corpus.left("train") == ["padded", "clipped", "peaks"]


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 5), st.integers(1, 20))
def test_runs_are_counted_across_blocks(mask, least, size):
    runs = Runs(least)
    for begin in range(0, len(mask), size):
        runs.add(np.array(mask[begin : begin + size]))
    lengths = [len(list(run)) for is_in, run in groupby(mask) if is_in]
    assert runs.total == sum(length for length in lengths if length >= least)


def test_test_splits_keep_what_can_be_decoded_and_scored(corpus, tmp_path):
    (tmp_path / "empty.flac").touch()
    corpus.fill("train")
    corpus.fill("test", 1)
    corpus.add("test", "fifty", text="ONE " * 50)
    corpus.add("test", "silent", level=0.0)
    corpus.add("test", "long", seconds=5.0)
    corpus.add("test", "noise", text="<>")
    corpus.add("test", "empty", path=tmp_path / "empty.flac")
    corpus.add("test", "wordless", text="")
    kinds = corpus.kinds(max_seconds=4.0)
    assert ("short-test", "test", "fifty") in kinds
    assert corpus.left("test") == ["good0", "fifty", "silent", "long", "noise"]


def test_overlap_between_splits_is_warned_of(corpus, audio, tmp_path):
    path = audio(tmp_path / "shared.flac", seed=99)
    corpus.add("train", "a", speaker="s1", path=path)
    corpus.add("train", "b", speaker="s2")
    corpus.add("dev", "a", speaker="s3", path=path)
    corpus.add("test", "c", speaker="s1")
    corpus.add("test", "d", speaker="s4", path=path, text="TWO")
    assert corpus.kinds() == {
        ("speaker-overlap", "test", "s1"),
        ("shared-id", "dev", "a"),
        ("same-audio-and-text", "dev", "a"),
        ("one-speaker", "dev", "dev"),
    }


def test_oov_words_are_counted_by_split(corpus):
    corpus.fill("train")
    corpus.add("train", "x", text="ONE CUATRO CINCO CUATRO", seconds=2.0)
    corpus.add("train", "y", text="CUATRO", seconds=2.0)
    headline, _ = corpus.check()
    assert headline["oov_percent"] == round(100 * 4 / 11, 2)
    assert (corpus.out / "oov.tsv").read_text().splitlines() == [
        "split\tword\tcount\tutterances",
        "train\tCUATRO\t3\tx y",
        "train\tCINCO\t1\tx",
    ]


def test_the_shortest_audio_for_a_transcript(corpus):
    corpus.fill("train")
    corpus.add("train", "enough", text="ONE TWO", seconds=0.15)  # 5 phones of 3 frames of 10 ms
    corpus.add("train", "short", text="ONE TWO", seconds=0.14)
    exact = "ONE " * 5 + "TWO TWO"  # 57 frames; 0.57 * 100 is a little less than 57
    corpus.add("train", "exact", text=exact, seconds=0.57)
    corpus.add("train", "guess", text="ABCDE", seconds=0.09)  # half of 5 letters: 3 phones
    corpus.add("train", "wrong", text="ABCDE", seconds=0.08)
    assert {id for kind, _, id in corpus.kinds() if kind == "too-short"} == {"short", "wrong"}


def test_a_long_list_is_cut_in_the_text_alone(corpus):
    for number in range(6):
        corpus.add("train", f"u{number}", text="CUATRO", seconds=0.5)
    _, findings = corpus.check(listed=4)
    assert len(findings) == 6
    assert "u3" in corpus.text
    assert "u4" not in corpus.text
    assert "and 2 more" in corpus.text


def test_reports_do_not_depend_on_jobs(corpus):
    corpus.fill("train", 20)
    corpus.add("train", "cut", broken=True, seconds=3.0)
    corpus.check(jobs=1)
    reports = {path.name: path.read_bytes() for path in corpus.out.iterdir()}
    corpus.check(jobs=2)
    assert {path.name: path.read_bytes() for path in corpus.out.iterdir()} == reports
    assert set(reports) == {"report.txt", "report.json", "findings.tsv", "excluded.tsv", "oov.tsv"}


def test_too_many_faults_stop_a_large_split_but_not_a_tiny_one(corpus):
    corpus.fill("train", 4)
    for number in range(3):
        corpus.add("train", f"bad{number}", text="")
    corpus.check()
    with pytest.raises(CorpusError, match=r"3 of 7 .*'train'.*3 empty-transcript.*report\.txt"):
        corpus.check(min_excluded=2)
    corpus.check(min_excluded=2, max_excluded=0.5)


def test_a_split_without_utterances_stops(corpus):
    corpus.fill("train")
    corpus.add("dev", "a", text="")
    with pytest.raises(CorpusError, match="1 of 1"):
        corpus.check()
    assert (corpus.out / "report.txt").exists()


def test_a_streamed_flac_is_used_with_its_true_length(corpus, audio, streamed, tmp_path):
    corpus.fill("train")
    cut = corpus.add("train", "s", path=streamed(audio(tmp_path / "s.flac", seconds=2.0, seed=9)))
    assert (cut.duration, cut.recording.num_samples) == (2.0, 32000)
    assert not {kind for kind, _, id in corpus.kinds() if id == "s"}
    assert "s" in corpus.left("train")


def test_notes_are_counted_and_the_first_named(corpus):
    for number in range(9):
        corpus.add("train", f"phone{number}", rate=8000)
    corpus.check()
    (row,) = [line for line in corpus.text.splitlines() if line.startswith("other-rate ")]
    assert row.split() == ["other-rate", "note", "9", "0", "phone0,", "phone1,", "phone2"]
    assert corpus.text.count("8000 Hz") == 3
    assert "  train  ... and 6 more, all in findings.tsv" in corpus.text
    head, *lines = (corpus.out / "findings.tsv").read_text().splitlines()
    rows = [dict(zip(head.split("\t"), line.split("\t"), strict=True)) for line in lines]
    assert [row["id"] for row in rows if row["kind"] == "other-rate"] == [
        f"phone{number}" for number in range(9)
    ]
    assert rows[0]["severity"] == "note"
    assert rows[0]["excluded"] == "no"


def test_a_split_that_the_toolkit_held_out_may_have_one_speaker(corpus):
    for speaker in ("ann", "ben", "cas"):
        corpus.add("all", f"{speaker}-1", speaker=speaker)
    parts = {"train": corpus.cuts.pop("all")}
    config = CorpusConfig(dev_speakers=1, test_speakers=1)
    corpus.cuts = assemble(parts, config, hold_out_test=True)
    assert corpus.kinds() == {("one-speaker", "train", "train")}
    for cut in corpus.cuts["dev"]:
        cut.custom = None
    assert ("one-speaker", "dev", "dev") in corpus.kinds()


def test_speakers_that_the_toolkit_divided_are_a_note_for_the_split(corpus):
    for number in range(20):
        corpus.add("all", f"u{number:02d}", speaker=f"s{number % 2}")
    config = CorpusConfig(hold_out="utterances", held_out_share=0.2)
    corpus.cuts = assemble({"train": corpus.cuts.pop("all")}, config, hold_out_test=True)
    headline, _ = corpus.check()
    assert headline["warnings"] == 0
    assert corpus.kinds() == {("known-speakers", "dev", "dev"), ("known-speakers", "test", "test")}
    assert "  dev  2 of its speakers are in other splits too" in corpus.text


def test_a_test_part_with_a_speaker_that_was_held_out_is_still_warned_of(corpus):
    for speaker in ("ann", "ben", "cas"):
        corpus.add("train", f"{speaker}-1", speaker=speaker)
    corpus.cuts = assemble(corpus.cuts, CorpusConfig(dev_speakers=1))
    (held_out,) = {cut.supervisions[0].speaker for cut in corpus.cuts["dev"]}
    corpus.add("test", "x", speaker=held_out)
    corpus.add("test", "y", speaker="dan")
    assert ("speaker-overlap", "test", held_out) in corpus.kinds()


def test_an_utterance_missing_from_utt2spk_is_warned_of(audio, tmp_path):
    audio(tmp_path / "a.wav")
    for name, lines in (
        ("wav.scp", "u1 a.wav\nu2 a.wav\n"),
        ("text", "u1 ONE\nu2 TWO\n"),
        ("utt2spk", "u1 ann\n"),
    ):
        (tmp_path / name).write_text(lines)
    write_cuts(read_kaldi_dir(tmp_path), tmp_path / "train.jsonl")
    check({"train": tmp_path / "train.jsonl"}, LEXICON, tmp_path / "check", CheckConfig())
    findings = json.loads((tmp_path / "check/report.json").read_text())["findings"]
    (finding,) = [item for item in findings if item["kind"] == "no-speaker"]
    assert (finding["id"], finding["detail"]) == (
        "u2",
        f"not in {tmp_path}/utt2spk: its recording counts as its speaker",
    )
    with open(tmp_path / "utt2spk", "a") as file:
        file.write("u1 ben\n")
    write_cuts(read_kaldi_dir(tmp_path), tmp_path / "train.jsonl")
    check({"train": tmp_path / "train.jsonl"}, LEXICON, tmp_path / "check", CheckConfig())
    findings = json.loads((tmp_path / "check/report.json").read_text())["findings"]
    (finding,) = [item for item in findings if item["kind"] == "two-speakers"]
    assert (finding["id"], finding["detail"]) == ("u1", f"{tmp_path}/utt2spk: ann, not ben")
    (tmp_path / "utt2spk").unlink()
    notes = [cut.custom["no_speaker"] for cut in read_kaldi_dir(tmp_path)]
    assert notes == [f"{tmp_path} has no utt2spk: its recording counts as its speaker"] * 2


def test_an_excluded_utterance_has_one_finding_per_fault(audio, tmp_path):
    audio(tmp_path / "a.wav", seconds=2.0)
    for name, lines in (
        ("wav.scp", "a a.wav\n"),
        ("segments", "u1 a 0 1\nu2 a 1 9\nu3 a 1.5 9\n"),
        ("text", "u1 ONE TWO\nu2 TWO\nu3 TWO\nu4 TWO\n"),
        ("utt2spk", "u1 ann\nu2 ben\n"),
    ):
        (tmp_path / name).write_text(lines)
    write_cuts(read_kaldi_dir(tmp_path), tmp_path / "train.jsonl")
    check({"train": tmp_path / "train.jsonl"}, LEXICON, tmp_path / "check", CheckConfig())
    findings = json.loads((tmp_path / "check/report.json").read_text())["findings"]
    assert {(item["kind"], item["id"]) for item in findings} == {
        ("bad-segment", "u2"),
        ("bad-segment", "u3"),
        ("missing-audio", "u4"),
    }


def test_audio_that_features_refuse_is_left_out_before_they_are_extracted(corpus, tmp_path):
    corpus.fill("train")
    corpus.add("train", "fast", rate=500_000, seconds=2.0)
    path = tmp_path / "floats.wav"
    samples = np.random.default_rng(0).standard_normal(16000).astype(np.float32) / 10
    samples[12000] = np.inf
    soundfile.write(path, samples, 16000, subtype="FLOAT")
    for id, start in (("before", 0.0), ("across", 0.5)):
        cut = corpus.add("train", id, path=path)
        cut.start, cut.duration = start, 0.5
    unreadable = {id for kind, _, id in corpus.kinds() if kind == "unreadable-audio"}
    assert unreadable == {"fast", "across"}
    assert f"{path}: NaN or infinite samples from 0.750 to 0.750 s" in corpus.text
    assert corpus.left("train") == ["good0", "good1", "good2", "before"]


def test_each_channel_is_checked_by_itself(corpus, tmp_path):
    noise = np.random.default_rng(0).integers(-999, 999, 16000).astype(np.int16)
    soundfile.write(tmp_path / "s.wav", np.stack([noise, 0 * noise], axis=1), 16000)
    recording, _ = probe_recording(tmp_path / "s.wav", "s")
    corpus.cuts["train"] = [
        make_cut(name, recording, "ONE TWO", name, channel=channel)
        for name, channel in (("a", 0), ("b", 1), ("c", 2))
    ]
    details = {(item["kind"], item["id"]): item["detail"] for item in corpus.check()[1]}
    assert details == {
        ("silent-audio", "b"): f"channel 2 of {tmp_path}/s.wav",
        ("no-channel", "c"): f"no channel 3, but 2 channels in {tmp_path}/s.wav",
    }
    assert corpus.left("train") == ["a"]


@pytest.mark.parametrize("suffix", [".wav", ".flac"])
def test_whole_files(audio, tmp_path, suffix):
    info = decode(str(audio(tmp_path / f"a{suffix}", seconds=40.0, rate=8000, channels=2)))
    assert (info.sampling_rate, info.channels) == (8000, 2)
    assert info.decoded == info.declared == 320000
    assert info.error is None
    assert not info.silent


@pytest.mark.parametrize(("gain", "silent"), [(-1.0, True), (-0.5, False)])
def test_channels_that_cancel_each_other_are_silent(tmp_path, gain, silent):
    noise = np.random.default_rng(0).integers(-999, 999, 1600)
    stereo = np.stack([noise, gain * noise], axis=1).astype(np.int16)
    soundfile.write(tmp_path / "a.wav", stereo, 16000)
    assert decode(str(tmp_path / "a.wav")).silent is silent


def test_digest_is_of_the_samples_not_the_format(audio, tmp_path):
    names = ("a.wav", "a.flac", "b.flac")
    wav, flac, different = (
        decode(str(audio(tmp_path / name, seed=name.startswith("b")))) for name in names
    )
    assert wav.digest == flac.digest != different.digest


@pytest.mark.parametrize("suffix", [".wav", ".flac", ".sph"])
def test_truncated_files_decode_shorter_than_declared(audio, truncate, tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    if suffix == ".sph":
        noise = np.random.default_rng(0).standard_normal(48000) * 0.1
        soundfile.write(str(path), noise, 16000, format="NIST", subtype="PCM_16")
    else:
        audio(path, seconds=3.0)
    assert decode(str(path)).decoded == 48000
    info = decode(str(truncate(path)))
    assert info.declared == 48000
    assert info.decoded < 48000


@pytest.mark.parametrize(("missing", "declared"), [(159, 16000 - 159), (161, 16000)])
def test_a_wav_missing_less_than_a_frame_is_whole(audio, tmp_path, missing, declared):
    path = audio(tmp_path / "a.wav", seconds=1.0)
    path.write_bytes(path.read_bytes()[: -2 * missing])
    info = decode(str(path))
    assert (info.declared, info.decoded) == (declared, 16000 - missing)


def test_damage_in_the_middle_of_a_flac_is_detected(audio, tmp_path):
    path = audio(tmp_path / "a.flac", seconds=3.0)
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 1000] = bytes(1000)
    path.write_bytes(content)
    info = decode(str(path))
    assert info.error is not None or info.decoded < info.declared


def test_sizes_of_streamed_wavs_are_not_believed(audio, tmp_path):
    path = audio(tmp_path / "a.wav")
    content = bytearray(path.read_bytes())
    place = content.index(b"data") + 4
    content[place : place + 4] = b"\xff\xff\xff\x7f"
    path.write_bytes(content)
    info = decode(str(path))
    assert info.declared == info.decoded == 16000


def test_no_audio_at_all(tmp_path):
    (tmp_path / "a.flac").touch()
    for name in ("a.flac", "none.flac"):
        info = decode(str(tmp_path / name))
        assert info.error is not None
        assert info.declared == 0


FORMATS = (
    *("PCM_16.wav", "PCM_24.wav", "FLOAT.wav", "DOUBLE.wav", "FLOAT.aiff", "FLOAT.w64"),
    *("FLOAT.caf", "FLOAT.au", "PCM_24.flac", "ULAW.wav", "VORBIS.ogg", "MPEG_LAYER_III.mp3"),
)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("level", [0.0, 0.1])
def test_silence(tmp_path, name, level):
    noise = np.random.default_rng(0).standard_normal(16000) * level
    path = tmp_path / name
    soundfile.write(path, noise, 16000, subtype=path.stem)
    assert decode(str(path)).silent is (level == 0)


@pytest.mark.parametrize("name", ["FLOAT.wav", "DOUBLE.wav", "FLOAT.aiff"])
def test_a_copy_in_floats_has_the_digest_of_its_file(audio, tmp_path, name):
    whole = audio(tmp_path / "a.flac", channels=2, level=20000.0)
    samples, rate = soundfile.read(whole)
    path = tmp_path / name
    soundfile.write(path, samples, rate, subtype=path.stem)
    assert decode(str(path)).digest == decode(str(whole)).digest


def test_loud_floats_are_clipped(tmp_path):
    for name, level in (("a.wav", 1.0), ("b.wav", 4.0)):
        samples = np.array([-level, level], dtype=np.float32)
        soundfile.write(tmp_path / name, samples, 16000, subtype="FLOAT")
    assert decode(str(tmp_path / "a.wav")).digest == decode(str(tmp_path / "b.wav")).digest


def test_values_that_are_not_numbers_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr("toolkit.corpus.check.BLOCK", 1000)
    samples = np.full((16000, 2), 0.1, dtype=np.float32)
    samples[2500, 1], samples[7000, 0] = np.nan, -np.inf
    for name, content in (("bad.wav", samples), ("good.wav", samples[:2500])):
        soundfile.write(tmp_path / name, content, 16000, subtype="FLOAT")
    assert decode(str(tmp_path / "bad.wav")).not_numbers == (2500, 7000)
    assert decode(str(tmp_path / "good.wav")).not_numbers is None


@pytest.mark.parametrize(("rate", "fault"), [(999, "999 Hz"), (1000, ""), (768_000, "768,000 Hz")])
def test_implausible_rates_are_found(audio, tmp_path, rate, fault):
    bad_rate = decode(str(audio(tmp_path / "a.wav", seconds=0.01, rate=rate))).bad_rate
    assert fault in bad_rate
    assert bool(bad_rate) == bool(fault)


def test_jobs_do_not_change_what_is_decoded(audio, tmp_path):
    paths = [str(audio(tmp_path / f"{n}.flac", seconds=0.1, seed=n)) for n in range(20)]
    progress = []
    audio_info = read_audio_info(paths * 2, 1, lambda done, total: progress.append((done, total)))
    assert progress == [(16, 20), (20, 20)]
    assert read_audio_info(paths, 2) == audio_info
    assert list(audio_info) == sorted(paths)


def test_a_streamed_flac_is_whole_and_its_length_is_what_it_holds(
    audio, streamed, truncate, tmp_path
):
    whole = decode(str(audio(tmp_path / "whole.flac", seconds=40.0, channels=2)))
    path = streamed(audio(tmp_path / "streamed.flac", seconds=40.0, channels=2))
    info = decode(str(path))
    assert (info.declared, info.decoded, info.error) == (640000, 640000, None)
    assert info.digest == whole.digest
    assert decode(str(truncate(path))).error
