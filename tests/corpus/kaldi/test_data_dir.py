import shutil
from pathlib import Path

import pytest

from toolkit.corpus.kaldi.data_dir import read_kaldi_dir, write_kaldi_dir
from toolkit.corpus.manifest import ManifestError, audio_of, make_cut, speaker_of, text_of
from toolkit.corpus.pipes import PipeRunner


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


def described(cuts):
    return [(c.id, speaker_of(c), text_of(c), c.start, c.duration) for c in cuts]


def fault_of(cut):
    return (cut.custom or {}).get("fault")


def test_unsorted_directory_with_relative_paths(folder, audio, tmp_path):
    audio(tmp_path / "wavs" / "b.wav", seconds=1.0)
    audio(tmp_path / "data" / "train" / "a.flac", seconds=0.5)
    cuts = read_kaldi_dir(
        folder(wav_scp="b wavs/b.wav\na a.flac\n", text="b TWO  WORDS\na ONE\n", utt2spk="b s2\n")
    )
    assert described(cuts) == [("b", "s2", "TWO WORDS", 0.0, 1.0), ("a", "a", "ONE", 0.0, 0.5)]


@pytest.mark.parametrize("marked", ["wav.scp", "text", "utt2spk"])
def test_the_mark_of_windows_editors_is_no_part_of_the_first_id(folder, audio, tmp_path, marked):
    audio(tmp_path / "a.wav", seconds=1.0)
    path = folder(wav_scp=f"a {tmp_path}/a.wav\n", text="a ONE\n", utt2spk="a s\n")
    (path / marked).write_bytes(b"\xef\xbb\xbf" + (path / marked).read_bytes())
    assert described(read_kaldi_dir(path)) == [("a", "s", "ONE", 0.0, 1.0)]


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


def test_a_channel_of_several_is_a_fault_and_not_their_mean(folder, audio, tmp_path):
    for name, channels in (("mono", 1), ("stereo", 2)):
        audio(tmp_path / f"{name}.wav", seconds=2.0, channels=channels)
    cuts = read_kaldi_dir(
        folder(
            wav_scp=f"m {tmp_path}/mono.wav\ns {tmp_path}/stereo.wav\n",
            text="u1 A\nu2 B\nu3 C\nu4 D\n",
            segments="u1 m 0 1 0\nu2 s 0 1 1\nu3 s 0 1 A\nu4 s 0 1\n",
            utt2spk="u1 s\nu2 s\nu3 s\nu4 s\n",
        )
    )
    by_id = {cut.id: cut for cut in cuts}
    assert [fault_of(by_id[f"u{n}"]) for n in range(1, 5)] == [
        None,
        "unread-channel",
        "unread-channel",
        "unread-channel",
    ]
    details = [by_id[f"u{n}"].custom["fault_detail"] for n in (2, 4)]
    assert details == [
        f"{channel} of 2 in {tmp_path}/stereo.wav: write each to its own file"
        for channel in ("channel 1", "no channel")
    ]


CHANNELS = "s-A s A\ns-B s B\nm m A\nn n 1\n"


@pytest.mark.parametrize("segments", [True, False])
def test_speakers_on_channels_of_a_file_are_never_averaged(folder, audio, tmp_path, segments):
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
    faults = {id: fault_of(cut) for id, cut in cuts.items()}
    assert faults == {
        **{"s-A": "unread-channel", "s-B": "unread-channel", "m": None, "n": None, "t": None}
    }
    detail = f"channel B of 2 in {wavs['s']}: write each to its own file"
    assert cuts["s-B"].custom["fault_detail"] == detail
    assert cuts["s-B"].duration == 0
    mixed = {id for id, cut in cuts.items() if (cut.custom or {}).get("mix_channels")}
    assert mixed == {"t"}


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
    one, two, three = read_kaldi_dir(path)
    assert [speaker_of(cut) for cut in (one, two, three)] == ["ann", "a", "ann"]
    assert one.custom == {"other_speaker": f"{path / 'utt2spk'}: ann, not ben"}
    assert "no_speaker" in two.custom
    assert three.custom is None


def test_commands_are_refused_and_not_run(folder, tmp_path):
    trap = tmp_path / "ran"
    (cut,) = read_kaldi_dir(folder(wav_scp=f"a touch {trap}; cat a.wav |\n", text="a ONE\n"))
    assert fault_of(cut) == "refused-pipe"
    assert "cat a.wav |" in cut.custom["fault_detail"]
    assert not trap.exists()


@pytest.mark.parametrize(
    "command", ["flac -c -d -s {} |", "flac -cds '{}' |", "sph2pipe -f wav -p {} |"]
)
def test_a_mere_decoding_command_is_read_as_its_file(folder, audio, tmp_path, command):
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
        "sph2pipe -f wav -p -c 2 {} |",
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


def test_a_program_whose_output_is_not_wanted_to_its_end_has_not_failed(tmp_path):
    found = PipeRunner(tmp_path)("u", "yes | head -c 100")
    assert found.fault is None
    assert len(Path(found.path).read_bytes()) == 100


def test_what_wrote_nothing_is_run_again(folder, audio, tmp_path):
    pipes, path = tmp_path / "pipes", tmp_path / "a.wav"
    data = folder(wav_scp=f"a test ! -e {path} || cat {path} |\n", text="a ONE\n")
    (cut,) = read_kaldi_dir(data, PipeRunner(pipes))
    assert cut.custom["fault_detail"].endswith("wrote nothing")
    audio(path, seconds=0.5)
    (cut,) = read_kaldi_dir(data, PipeRunner(pipes))
    assert cut.duration == 0.5
    (kept,) = pipes.iterdir()
    kept.write_bytes(b"")  # as earlier versions left it
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
    again = read_kaldi_dir(tmp_path / "out")
    assert described(again) == sorted(described(cuts))
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
    with pytest.raises(ManifestError, match="'a' is that of two files"):
        write_kaldi_dir(cuts, tmp_path / "out")


@pytest.mark.parametrize("name", ["touch ran |", "x.wav | ", "a.wav\nb touch ran |"])
def test_names_that_kaldi_would_run_are_not_written(folder, audio, tmp_path, name):
    audio(tmp_path / "a.wav")
    cuts = read_kaldi_dir(folder(wav_scp="a a.wav\n", text="a ONE\n"))
    cuts[0].recording.sources[0].source = name
    with pytest.raises(ManifestError, match="a: Kaldi would run"):
        write_kaldi_dir(cuts, tmp_path / "out")
    assert not (tmp_path / "out").exists()
