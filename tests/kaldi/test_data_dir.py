"""Data directories of Kaldi, read and written."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from lhotse import AudioSource

from tests.dummies import dummy_recording
from toolkit.corpus.manifest import (
    ManifestError,
    audio_of,
    channel_name,
    channel_of,
    make_cut,
    probe_recording,
    speaker_of,
    text_of,
)
from toolkit.corpus.pairing import AudioSegment
from toolkit.corpus.wav_scp import PipeRunner
from toolkit.features.cut_audio import load_cut_audio
from toolkit.kaldi.data_dir import export_data_dir, read_kaldi_dir, write_kaldi_dir
from toolkit.kaldi.validate import data_dir_faults


@pytest.fixture
def folder(tmp_path):
    """Write files: folder(text="...", segments="...") -> data directory."""

    def write(**files):
        path = tmp_path / "data" / "train"
        path.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (path / name.replace("_", ".")).write_text(content)
        return path

    return write


def attributes(cuts):
    return [(c.id, speaker_of(c), text_of(c), c.start, c.duration) for c in cuts]


def fault_of(cut):
    return (cut.custom or {}).get("fault")


def test_unsorted_directory_with_relative_paths(folder, audio, tmp_path):
    audio(tmp_path / "wavs" / "b.wav", seconds=1.0)
    audio(tmp_path / "data" / "train" / "a.flac", seconds=0.5)
    cuts = read_kaldi_dir(
        folder(wav_scp="b wavs/b.wav\na a.flac\n", text="b TWO  WORDS\na ONE\n", utt2spk="b s2\n")
    )
    assert attributes(cuts) == [("b", "s2", "TWO WORDS", 0.0, 1.0), ("a", "a", "ONE", 0.0, 0.5)]


@pytest.mark.parametrize("marked", ["wav.scp", "text", "utt2spk"])
def test_a_byte_order_mark_is_not_part_of_the_first_id(folder, audio, tmp_path, marked):
    audio(tmp_path / "a.wav", seconds=1.0)
    path = folder(wav_scp=f"a {tmp_path}/a.wav\n", text="a ONE\n", utt2spk="a s\n")
    (path / marked).write_bytes(b"\xef\xbb\xbf" + (path / marked).read_bytes())
    assert attributes(read_kaldi_dir(path)) == [("a", "s", "ONE", 0.0, 1.0)]


def test_lines_that_are_not_utf8_are_faults_of_their_utterances(folder, audio, tmp_path):
    for name in "abcd":
        audio(tmp_path / f"{name}.wav", seconds=1.0)
    path = folder(wav_scp="", text="", utt2spk="")
    scp = b"".join(b"%c %s/%c.wav\n" % (i, bytes(tmp_path), i) for i in b"abcd")
    (path / "wav.scp").write_bytes(scp.replace(b"d.wav", b"\xe9.wav"))
    (path / "text").write_bytes(b"a gr\xc3\nb gr\xc3\xbcn\nc X\nd Y\n")
    (path / "utt2spk").write_bytes(b"a s\nb s\nc \xe9\nd s\n")
    cuts = {cut.id: cut for cut in read_kaldi_dir(path)}
    assert {id: fault_of(cut) for id, cut in cuts.items()} == {
        **{"a": "not-utf8", "b": None, "c": None, "d": "not-utf8"}
    }
    assert cuts["a"].custom["fault_detail"] == rf"{path / 'text'}:1: `a gr\xc3`"
    assert text_of(cuts["b"]) == "grün"
    assert "no_speaker" in cuts["c"].custom


@pytest.mark.parametrize("program", ["sph2pipe", "/opt/kaldi/tools/sph2pipe_v2.5/sph2pipe"])
def test_paths_of_another_machine_are_mapped(folder, audio, tmp_path, program):
    audio(tmp_path / "new" / "x y.wav", seconds=1.0)
    audio(tmp_path / "new" / "deep" / "b.wav", seconds=1.0)
    path = folder(
        wav_scp=f"a {program} -f wav -p '/old/home/x y.wav' |\nb /old/home/far/b.wav\n",
        text="a ONE\nb TWO\n",
        utt2spk="a s\nb s\n",
    )
    assert {fault_of(cut) for cut in read_kaldi_dir(path)} == {"missing-audio"}
    mappings = (f"/old/home={tmp_path}/new", f"/old/home/far={tmp_path}/new/deep")
    cuts = read_kaldi_dir(path, path_map=mappings)
    assert [fault_of(cut) for cut in cuts] == [None, None]
    assert [audio_of(cut) for cut in cuts] == [
        f"{tmp_path}/new/x y.wav",
        f"{tmp_path}/new/deep/b.wav",
    ]


def test_segments_with_open_ends(folder, audio, tmp_path):
    audio(tmp_path / "r.wav", seconds=2.0)
    cuts = read_kaldi_dir(
        folder(
            wav_scp=f"r {tmp_path}/r.wav\n",
            text="u2 B\nu1 A\nu3 C\nu4 D\nu5 E\nu6 F\n",
            segments="u1 r 0 1.5\nu2 r 1.5 -1\nu3 r 1.0 2.2 A\nu4 r 1.0 9.0\nu5 q 0 1\nu6 r x y\n",
            utt2spk="u1 s\nu2 s\nu3 s\nu4 s\nu5 s\nu6 s\n",
        )
    )
    by_id = {cut.id: cut for cut in cuts}
    assert [(by_id[i].start, by_id[i].end) for i in ("u1", "u2", "u3")] == [
        (0.0, 1.5),
        (1.5, 2.0),
        (1.0, 2.0),
    ]
    assert by_id["u3"].custom["note"] == "trimmed-segment"
    assert [fault_of(by_id[id]) for id in ("u4", "u5", "u6")] == [
        "bad-segment",
        "missing-audio",
        "bad-segment",
    ]


@pytest.mark.parametrize(("first", "second"), [("0", "1"), ("1", "2"), ("A", "B"), ("a", "2")])
def test_a_fifth_column_of_segments_picks_a_channel(folder, audio, tmp_path, first, second):
    for name, channels in (("mono", 1), ("stereo", 2)):
        audio(tmp_path / f"{name}.wav", seconds=2.0, channels=channels)
    rows = (f"m 0 1 {first}", f"s 0 1 {second}", f"s 0 1 {first}", "s 0 1", "s 0 1 7", "s 0 1 x")
    ids = [f"u{n}" for n in range(len(rows))]
    path = folder(
        wav_scp=f"m {tmp_path}/mono.wav\ns {tmp_path}/stereo.wav\n",
        text="".join(f"{id} ONE\n" for id in ids),
        segments="".join(f"{id} {row}\n" for id, row in zip(ids, rows, strict=True)),
        utt2spk="".join(f"{id} s\n" for id in ids),
    )
    cuts = [{cut.id: cut for cut in read_kaldi_dir(path)}[id] for id in ids]
    assert [fault_of(cut) for cut in cuts] == [None] * 3 + ["no-channel"] * 3
    assert [channel_of(cut) for cut in cuts[:3]] == [0, 1, 0]
    assert "names no channel, but others name" in cuts[3].custom["fault_detail"]
    assert cuts[4].custom["fault_detail"].endswith(f"but 2 channels in {tmp_path}/stereo.wav")


def test_a_lone_channel_1_of_segments_is_the_second_as_in_kaldi(folder, audio, tmp_path):
    wav = audio(tmp_path / "s.wav", channels=2)
    (cut,) = read_kaldi_dir(folder(wav_scp=f"s {wav}\n", text="u A\n", segments="u s 0 1 1\n"))
    assert channel_of(cut) == 1


def test_segments_have_five_fields_at_most(folder, audio, tmp_path):
    segments = "a s 0 1 0\nb s 0 1 -1\nc s 0 1 0 1\n"
    wav = audio(tmp_path / "s.wav")
    cuts = read_kaldi_dir(folder(wav_scp=f"s {wav}\n", text="a A\nb B\nc C\n", segments=segments))
    assert {cut.id: fault_of(cut) for cut in cuts} == {"a": None, "b": None, "c": "bad-segment"}


@pytest.mark.parametrize(
    ("command", "side", "segment", "channel", "disagree"),
    [
        ("sph2pipe -f wav -p -c 2 {} |", "B", None, 1, False),
        ("sph2pipe -f wav -p -c 2 {} |", "A", None, 1, True),
        ("sph2pipe -f wav -p -c 2 {} |", None, "0", 1, False),
        ("sph2pipe -f wav -p -c 2 {} |", "B", "B", 1, False),
        ("sph2pipe -f wav -p -c 1 {} |", None, "B", 0, True),
        ("{}", "B", "1", 1, False),
        ("{}", "A", "1", 1, True),
    ],
)
def test_tables_that_name_different_channels_are_a_warning(
    folder, audio, tmp_path, command, side, segment, channel, disagree
):
    wav = audio(tmp_path / "s.wav", channels=2)
    files = {"wav_scp": f"s {command.format(wav)}\n", "text": "s A\n"}
    if segment:
        files |= {"segments": f"s s 0 1 {segment}\n"}
    path = folder(**files)
    if side:
        (path / "reco2file_and_channel").write_text(f"s s {side}\n")
    (cut,) = read_kaldi_dir(path)
    assert fault_of(cut) is None
    assert channel_of(cut) == channel
    assert (cut.custom.get("note") == "other-channel") == disagree


CHANNELS = "s-A s A\ns-B s B\nm m A\nn n 1\n"


@pytest.mark.parametrize("segments", [True, False])
def test_reco2file_and_channel_picks_channels(folder, audio, tmp_path, segments):
    wavs = {n: audio(tmp_path / f"{n}.wav", channels=2 if n in "st" else 1) for n in "stmn"}
    scp = {"s-A": wavs["s"], "s-B": wavs["s"], "m": wavs["m"], "n": wavs["n"], "t": wavs["t"]}
    files = {
        "wav_scp": "".join(f"{id} {path}\n" for id, path in scp.items()),
        "text": "".join(f"{id} ONE\n" for id in scp),
        "utt2spk": "".join(f"{id} {id}\n" for id in scp),
    }
    if segments:
        files["segments"] = "".join(f"{id} {id} 0.2 0.8\n" for id in scp)
    path = folder(**files)
    (path / "reco2file_and_channel").write_text(CHANNELS)
    cuts = {cut.id: cut for cut in read_kaldi_dir(path)}
    assert not any(fault_of(cut) for cut in cuts.values())
    expected = {"s-A": (0, "A"), "s-B": (1, "B"), "m": (0, "A"), "n": (0, "1"), "t": (None, "1")}
    assert {id: (channel_of(c), channel_name(c)) for id, c in cuts.items()} == expected
    assert {id: cut.recording_id for id, cut in cuts.items()} == {id: id for id in scp}
    stereo = soundfile.read(wavs["s"], dtype="float32")[0]
    piece = slice(3200, 12800) if segments else slice(None)
    for side, id in enumerate(("s-A", "s-B")):
        assert np.array_equal(load_cut_audio(cuts[id]).numpy(), stereo[piece, side])


@pytest.mark.parametrize(("first", "second"), [("1", "2"), ("0", "1"), ("b", "a")])
def test_names_of_sides(folder, audio, tmp_path, first, second):
    wav = audio(tmp_path / "s.wav", channels=2)
    path = folder(wav_scp=f"x {wav}\ny {wav}\n", text="x A\ny B\n")
    (path / "reco2file_and_channel").write_text(f"x s {first}\ny s {second}\n")
    channels = [channel_of(cut) for cut in read_kaldi_dir(path)]
    assert channels == ([1, 0] if first == "b" else [0, 1])


def test_two_sides_of_a_file_of_one_channel_are_a_fault(folder, audio, tmp_path):
    wav, mono = audio(tmp_path / "s.wav"), audio(tmp_path / "b.wav")
    path = folder(wav_scp=f"x {wav}\ny {wav}\nz {mono}\n", text="x A\ny B\nz C\n")
    (path / "reco2file_and_channel").write_text("x s A\ny s B\nz b B\n")
    x, y, z = read_kaldi_dir(path)
    assert [fault_of(cut) for cut in (x, y, z)] == ["no-channel", "no-channel", None]
    assert x.custom["fault_detail"] == f"side A: sides A, B are named, but only 1 channel in {wav}"
    assert channel_name(z) == "B"


@pytest.mark.parametrize("command", ["sph2pipe -f wav -p -c {} {}", "sph2pipe -c {} -f wav {}"])
def test_sph2pipe_picks_a_channel(folder, tmp_path, command):
    stereo = np.stack([np.arange(8000), -np.arange(8000)], axis=1) / 2**15
    wav = tmp_path / "s.sph"
    soundfile.write(wav, stereo, 8000, format="NIST", subtype="PCM_16")
    scp = "".join(f"{n} {command.format(n, wav)} |\n" for n in (1, 2))
    cuts = read_kaldi_dir(folder(wav_scp=scp, text="1 A\n2 B\n"))
    assert [(channel_of(cut), cut.custom["note"]) for cut in cuts] == [
        (0, "replaced-pipe"),
        (1, "replaced-pipe"),
    ]
    for side, cut in enumerate(cuts):
        assert np.array_equal(load_cut_audio(cut, 8000).numpy(), stereo[:, side].astype("float32"))


def test_sph2pipe_of_a_channel_that_the_file_lacks_is_a_fault(folder, audio, tmp_path):
    wav = audio(tmp_path / "m.wav")
    (cut,) = read_kaldi_dir(folder(wav_scp=f"m sph2pipe -f wav -p -c 2 {wav} |\n", text="m A\n"))
    assert cut.custom["fault_detail"] == f"no channel 2, but 1 channel in {wav}"


@pytest.mark.parametrize("coding", ["pcm,embedded-shorten-v2.00", "ulaw,embedded-shorten-v2.00"])
def test_a_shortened_sphere_file_is_an_error_with_advice(folder, tmp_path, coding):
    head = f"NIST_1A\n   1024\nsample_coding -s{len(coding)} {coding}\nend_head\n"
    wav = tmp_path / "s.sph"
    wav.write_bytes(head.encode().ljust(1024) + b"ajkg" + bytes(100))
    path = folder(wav_scp=f"m sph2pipe -f wav -p -c 2 {wav} |\n", text="m A\n")
    (cut,) = read_kaldi_dir(path)
    assert fault_of(cut) == "unreadable-audio"
    assert "shorten" in cut.custom["fault_detail"]
    assert "sph2pipe -f wav" in cut.custom["fault_detail"]
    commands = []
    read_kaldi_dir(path, lambda id, command: commands.append(command) or AudioSegment(str(wav)))
    assert commands == [f"sph2pipe -f wav -p -c 2 {wav}"]


def test_duplicates_are_kept_for_the_check(folder, audio, tmp_path):
    audio(tmp_path / "a.wav")
    audio(tmp_path / "b.wav")
    path = folder(wav_scp="a a.wav\na b.wav\n", text="a ONE\na TWO\n")
    assert [(c.id, text_of(c)) for c in read_kaldi_dir(path)] == [("a", "ONE"), ("a", "TWO")]
    folder(text="u ONE\n", segments="u a 0 0.5\n")
    (cut,) = read_kaldi_dir(path)
    assert cut.custom["note"] == "duplicate-recording"
    assert audio_of(cut) == str(tmp_path / "a.wav")


def test_of_two_speakers_the_first_is_kept_and_an_empty_one_is_none(folder, audio, tmp_path):
    audio(tmp_path / "a.wav")
    path = folder(
        wav_scp="a a.wav\n",
        text="u1 ONE\nu2 TWO\nu3 ONE\n",
        segments="u1 a 0 0.5\nu2 a 0.5 1\nu3 a 0 1\n",
        utt2spk="u1 ann\nu1 ben\nu2\nu3 ann\nu3 ann\n",
    )
    first, second, third = read_kaldi_dir(path)
    assert [speaker_of(cut) for cut in (first, second, third)] == ["ann", "a", "ann"]
    assert first.custom == {"other_speaker": f"{path / 'utt2spk'}: ann, not ben"}
    assert "no_speaker" in second.custom
    assert third.custom is None


def test_commands_are_refused_and_not_run(folder, tmp_path):
    trap = tmp_path / "ran"
    (cut,) = read_kaldi_dir(folder(wav_scp=f"a touch {trap}; cat a.wav |\n", text="a ONE\n"))
    assert fault_of(cut) == "refused-pipe"
    assert "cat a.wav |" in cut.custom["fault_detail"]
    assert not trap.exists()


@pytest.mark.parametrize(
    "command", ["flac -c -d -s {} |", "flac -cds '{}' |", "sph2pipe -f wav -p {} |"]
)
def test_a_pure_decoding_command_is_read_as_its_file(folder, audio, tmp_path, command):
    path = audio(tmp_path / "a b.flac" if "'" in command else tmp_path / "a.flac")
    (cut,) = read_kaldi_dir(folder(wav_scp=f"a {command.format(path)}\n", text="a ONE\n"))
    assert audio_of(cut) == str(path)
    assert cut.custom["note"] == "replaced-pipe"


@pytest.mark.parametrize(
    "command",
    [
        "flac -c -d -s {} | sox - -t wav - |",
        "flac -c -d -s `touch x` {} |",
        "flac -c -d -s {} > y |",
        "flac -o y -d {} |",
        "flac -c -d '{} |",
        "sph2pipe -f wav -p -c 3 {} |",
        "sph2pipe -f wav -u {} |",
        "sox {} -t wav - remix 1,2 |",
        "sox {} -t wav - rate 8k |",
        "cat {} |",
        "|",
    ],
)
def test_no_other_command_is_taken_for_a_file(folder, audio, tmp_path, command):
    path = audio(tmp_path / "a.flac")
    (cut,) = read_kaldi_dir(folder(wav_scp=f"a {command.format(path)}\n", text="a ONE\n"))
    assert fault_of(cut) == "refused-pipe"


def test_allowed_commands_run_once(folder, audio, tmp_path):
    path = audio(tmp_path / "a.wav", seconds=0.5)
    log = tmp_path / "log"
    data = folder(
        wav_scp=f"a echo x >> {log}; cat {path} |\nb echo broken >&2; exit 3 |\n",
        text="a ONE\nb TWO\n",
    )
    for _ in range(2):
        good, bad = read_kaldi_dir(data, PipeRunner(tmp_path / "pipes"))
    assert good.duration == 0.5
    assert log.read_text() == "x\n"
    assert fault_of(bad) == "unreadable-audio"
    assert "status 3: broken" in bad.custom["fault_detail"]


@pytest.mark.skipif(not shutil.which("bash"), reason="sh tells of the last program alone")
def test_a_pipeline_fails_with_each_of_its_programs(folder, tmp_path):
    pipes, missing = tmp_path / "pipes", tmp_path / "x.raw"
    data = folder(wav_scp=f"a cat {missing} | cat |\n", text="a ONE\n")
    (cut,) = read_kaldi_dir(data, PipeRunner(pipes))
    assert "status 1" in cut.custom["fault_detail"]
    assert not pipes.exists()


def test_a_program_that_ends_with_sigpipe_has_not_failed(tmp_path):
    output = PipeRunner(tmp_path)("u", "yes | head -c 100")
    assert output.fault is None
    assert len(Path(output.path).read_bytes()) == 100


def test_a_command_without_output_runs_again(folder, audio, tmp_path):
    pipes, path = tmp_path / "pipes", tmp_path / "a.wav"
    data = folder(wav_scp=f"a test ! -e {path} || cat {path} |\n", text="a ONE\n")
    (cut,) = read_kaldi_dir(data, PipeRunner(pipes))
    assert cut.custom["fault_detail"].endswith("wrote nothing")
    audio(path, seconds=0.5)
    (cut,) = read_kaldi_dir(data, PipeRunner(pipes))
    assert cut.duration == 0.5
    (cached,) = pipes.iterdir()
    cached.write_bytes(b"")  # as earlier versions left it
    (cut,) = read_kaldi_dir(data, PipeRunner(pipes))
    assert cut.duration == 0.5


def test_a_directory_without_text_is_refused(folder):
    with pytest.raises(ManifestError, match="no file 'text'"):
        read_kaldi_dir(folder(wav_scp="a a.wav\n"))


def test_written_directories_are_read_back(folder, audio, tmp_path):
    audio(tmp_path / "r.wav", seconds=2.0)
    audio(tmp_path / "q.flac", seconds=1.0)
    source = folder(
        wav_scp="r r.wav\nq q.flac\n",
        text="u2 B\nu1 A C\nv D\n",
        segments="u2 r 1.25 2\nu1 r 0 1.125\nv q 0 1\n",
        utt2spk="u1 s\nu2 s\nv t\n",
    )
    cuts = read_kaldi_dir(source)
    write_kaldi_dir(cuts, tmp_path / "out")
    reread_cuts = read_kaldi_dir(tmp_path / "out")
    assert attributes(reread_cuts) == sorted(attributes(cuts))
    assert (tmp_path / "out" / "spk2utt").read_text() == "s u1 u2\nt v\n"
    lines = (tmp_path / "out" / "wav.scp").read_text().splitlines()
    assert lines == [f"q flac -c -d -s {tmp_path}/q.flac |", f"r {tmp_path}/r.wav"]


def test_whole_recordings_need_no_segments(folder, audio, tmp_path):
    audio(tmp_path / "a.wav")
    cuts = read_kaldi_dir(folder(wav_scp="a a.wav\n", text="a ONE\n"))
    write_kaldi_dir(cuts, tmp_path / "out")
    assert not (tmp_path / "out" / "segments").exists()
    with pytest.raises(ManifestError, match="'a' occurs twice"):
        write_kaldi_dir(cuts * 2, tmp_path / "out2")


def test_segments_of_an_earlier_export_do_not_stay(folder, audio, tmp_path):
    audio(tmp_path / "a.wav", seconds=2.0)
    whole = read_kaldi_dir(folder(wav_scp="a a.wav\n", text="a ONE\n"))
    part = make_cut("a", whole[0].recording, "ONE", "a", 0.5, 1.0)
    for cut in (part, whole[0]):
        write_kaldi_dir([cut], tmp_path / "out")
        assert (tmp_path / "out" / "segments").exists() == (cut is part)


def test_a_recording_id_of_two_files_is_refused(folder, audio, tmp_path):
    audio(tmp_path / "a.wav")
    audio(tmp_path / "b.wav")
    cuts = read_kaldi_dir(folder(wav_scp="a a.wav\nb b.wav\n", text="a ONE\nb TWO\n"))
    cuts[1].recording.id = "a"
    with pytest.raises(ManifestError, match="two files or channels have the recording id 'a'"):
        write_kaldi_dir(cuts, tmp_path / "out")


@pytest.mark.parametrize("name", ["touch ran |", "x.wav | ", "a.wav\nb touch ran |"])
def test_names_that_kaldi_would_run_are_not_written(folder, audio, tmp_path, name):
    audio(tmp_path / "a.wav")
    cuts = read_kaldi_dir(folder(wav_scp="a a.wav\n", text="a ONE\n"))
    cuts[0].recording.sources[0].source = name
    with pytest.raises(ManifestError, match="a: Kaldi would run"):
        write_kaldi_dir(cuts, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.fixture
def cut(audio, tmp_path):
    def cut(id, speaker, text="A B", start=0.0, end=None, recording=None, channels=1, name=None):
        path = audio(tmp_path / (name or f"{recording or id}.wav"), 2.0, channels=channels)
        header, _ = probe_recording(path, recording or id)
        return make_cut(id, header, text, speaker, start, end)

    return cut


def attributes_by_id(cuts):
    return {c.id: (speaker_of(c), text_of(c), c.start, c.duration, c.recording_id) for c in cuts}


def test_whole_recordings_round_trip(cut, tmp_path):
    cuts = [cut("b-1", "b"), cut("a-2", "a", "C"), cut("a-1", "a")]
    export = export_data_dir(cuts, tmp_path / "out")
    assert (export.utterances, export.speakers, export.renamed) == (3, 2, False)
    assert data_dir_faults(tmp_path / "out") == []
    assert not (tmp_path / "out/segments").exists()
    assert (tmp_path / "out/utt2dur").read_text() == "a-1 2\na-2 2\nb-1 2\n"
    imported = read_kaldi_dir(tmp_path / "out")
    assert attributes_by_id(imported) == attributes_by_id(cuts)
    export_data_dir(imported, tmp_path / "again")
    for path in (tmp_path / "out").iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()


def test_parts_of_recordings_round_trip(cut, tmp_path):
    cuts = [
        cut("a-1", "a", start=0.25, end=1.5, recording="r"),
        cut("a-2", "a", start=1.5, recording="r"),
    ]
    export_data_dir(cuts, tmp_path / "out")
    assert (tmp_path / "out/segments").is_file()
    assert (tmp_path / "out/reco2dur").read_text() == "r 2\n"
    assert attributes_by_id(read_kaldi_dir(tmp_path / "out")) == attributes_by_id(cuts)


def test_ids_out_of_the_speakers_order_get_their_speakers_as_prefixes(cut, tmp_path):
    export = export_data_dir([cut("1", "zoe"), cut("2", "amy"), cut("3", "zoe")], tmp_path / "out")
    assert export.renamed
    assert (tmp_path / "out/utt_map").read_text() == "amy-2 2\nzoe-1 1\nzoe-3 3\n"
    assert (tmp_path / "out/wav.scp").read_text().startswith("amy-2 ")
    assert data_dir_faults(tmp_path / "out") == []
    export_data_dir([cut("amy-1", "amy")], tmp_path / "out")
    assert not (tmp_path / "out/utt_map").exists()  # no longer what it says


def test_a_speaker_that_is_a_prefix_of_another_is_an_error(cut, tmp_path):
    cuts = [cut("z", "a"), cut("c", "a-b")]
    with pytest.raises(ManifestError, match="name of one is a prefix of another"):
        export_data_dir(cuts, tmp_path / "out")


def test_cuts_that_kaldi_cannot_use_are_left_out_with_the_reason(cut, tmp_path):
    silent = make_cut("a-3", dummy_recording(3), "X", "a", fault=("missing-audio", "gone"))
    export = export_data_dir([cut("a-1", "a"), cut("a-2", "a", ""), silent], tmp_path / "out")
    assert export.left_out == (
        ("a-2", "no word in its transcript"),
        ("a-3", "missing-audio: gone"),
    )
    with pytest.raises(ManifestError, match=r"no utterance .* first is a-2: no word"):
        export_data_dir([cut("a-2", "a", "")], tmp_path / "empty")


def test_each_utterance_keeps_its_file_where_recordings_share_an_id(cut, tmp_path):
    cuts = [
        cut("a-3", "a", recording="r", name="x/r.wav"),
        cut("a-1", "a", recording="r", name="y/r.wav"),
        cut("a-2", "a", recording="r-2"),
        cut("a-4", "a", recording="r", name="y/r.wav", start=1.0),
    ]
    export_data_dir(cuts, tmp_path / "out")
    imported = {c.id: (c.recording_id, audio_of(c)) for c in read_kaldi_dir(tmp_path / "out")}
    named = {"a-1": "r", "a-2": "r-2", "a-3": "r-3", "a-4": "r"}
    assert imported == {c.id: (named[c.id], audio_of(c)) for c in cuts}
    assert (tmp_path / "out/reco2dur").read_text() == "r 2\nr-2 2\nr-3 2\n"


def test_audio_that_wav_scp_cannot_name_is_left_out(cut, tmp_path):
    fast, two_files = cut("a-2", "a"), cut("a-3", "a")
    fast.recording = fast.recording.perturb_speed(0.9)
    second = AudioSource("file", [1], two_files.recording.sources[0].source)
    two_files.recording.sources.append(second)
    two_files.recording.channel_ids = [0, 1]
    export = export_data_dir([cut("a-1", "a"), fast, two_files], tmp_path / "out")
    assert (tmp_path / "out/text").read_text() == "a-1 A B\n"
    assert dict(export.left_out) == {
        "a-2": "transforms change its audio, such as its speed: write the result to a file",
        "a-3": "its recording consists of 2 files",
    }


@pytest.mark.parametrize("suffix", ["wav", "flac", "sph"])
def test_channels_round_trip(audio, tmp_path, suffix):
    path = tmp_path / f"s.{suffix}"
    audio(tmp_path / "s.wav", 2.0, channels=2)
    samples, rate = soundfile.read(tmp_path / "s.wav", dtype="int16")
    soundfile.write(path, samples, rate, format={"sph": "NIST"}.get(suffix))
    header, _ = probe_recording(path, "s")
    cuts = [
        make_cut(f"{name}-1", header, "X", name, 0.5, 1.5, channel=side, channel_name="AB"[side])
        for side, name in enumerate(("ann", "bob"))
    ]
    export_data_dir(cuts, tmp_path / "out")
    sides = (tmp_path / "out/reco2file_and_channel").read_text()
    assert sides == "s s A\ns-2 s B\n"
    assert data_dir_faults(tmp_path / "out") == []
    command = "sph2pipe -f wav -p -c 2 {}" if suffix == "sph" else "sox {} -t wav - remix 2"
    assert f"s-2 {command.format(path)} |\n" in (tmp_path / "out/wav.scp").read_text()
    imported = read_kaldi_dir(tmp_path / "out")
    assert [(channel_of(c), channel_name(c), audio_of(c)) for c in imported] == [
        (0, "A", str(path)),
        (1, "B", str(path)),
    ]
    for original, restored in zip(cuts, imported, strict=True):
        assert torch.equal(load_cut_audio(original), load_cut_audio(restored))
    mono, _ = probe_recording(audio(tmp_path / "m.wav"), "m")
    export_data_dir([make_cut("m-1", mono, "X", "m")], tmp_path / "out")
    assert not (tmp_path / "out/reco2file_and_channel").exists()


def test_words_that_kaldi_reserves_are_an_error_that_names_the_line(cut, tmp_path):
    with pytest.raises(ManifestError, match=r"text:1: a-1 has the word </s>"):
        export_data_dir([cut("a-1", "a", "X </s>")], tmp_path / "out")


def test_recordings_with_several_channels_are_a_note(cut, tmp_path):
    export = export_data_dir([cut("a-1", "a", channels=2), cut("a-2", "a")], tmp_path / "out")
    (note,) = export.notes
    assert "1 utterances are of recordings with several channels" in note
    assert Path(tmp_path / "out/wav.scp").is_file()


def test_a_speaker_with_white_space_is_named(cut, tmp_path):
    with pytest.raises(ManifestError, match=r"speaker 'Ann Lee' .* white space: rename it"):
        export_data_dir([cut("Ann-1", "Ann Lee")], tmp_path / "out")


def test_suffixes_in_capitals_are_those_of_the_same_formats(cut, tmp_path):
    export = export_data_dir([cut("a-1", "a", name="x.FLAC")], tmp_path / "out")
    assert export.notes == ()
    line = f"a-1 flac -c -d -s {tmp_path}/x.FLAC |\n"
    assert (tmp_path / "out/wav.scp").read_text() == line
