"""Audio sources named by arguments, and reading them."""

import gzip
import io
import json
import os

import numpy as np
import pytest
import soundfile
import torch

from toolkit.align.inputs import InputError
from toolkit.corpus.manifest import make_cut, probe_recording, write_cuts
from toolkit.decode.sources import Inputs, SourceError, check_ids, check_keys
from toolkit.features.audio import AudioError, load_audio
from toolkit.kaldi.data_dir import read_kaldi_dir


@pytest.fixture
def read(tmp_path):
    """read(*arguments) -> {name: samples, or the message of the fault}."""

    def run(*arguments, stdin=b"", **options):
        (tmp_path / "work").mkdir(exist_ok=True)
        names = list(map(str, arguments))
        sources = Inputs(**options).sources(names, io.BytesIO(stdin), tmp_path / "work")
        contents = {}
        for source in sources:
            try:
                contents[source.called] = torch.cat(list(source.blocks(16000, 0.3)))
            except AudioError as error:
                contents[source.called] = str(error)
        run.keys = [source.key for source in sources]
        return contents

    return run


def test_files_and_folders_in_order(audio, read, tmp_path):
    folder = tmp_path / "talks"
    for name in ("b.WAV", "a.wav", "deep/er/c.flac", ".hidden/d.wav"):
        path = audio(folder / name.replace(".WAV", ".wav").replace(".flac", ".wav"))
        path.rename(folder / name)
    (folder / "notes.txt").write_text("no audio")
    single = audio(tmp_path / "x.wav")
    contents = read(single, folder)
    expected = [single, folder / "a.wav", folder / "b.WAV", folder / "deep/er/c.flac"]
    assert list(contents) == [str(path) for path in expected]
    assert read.keys == ["x", "a", "b", "deep/er/c"]
    for path in expected:
        assert torch.equal(contents[str(path)], load_audio(path))


def test_channels(audio, read, tmp_path):
    path = audio(tmp_path / "x.wav", channels=2)
    assert torch.equal(read(path)[str(path)], load_audio(path))
    assert torch.equal(read(path, channel=1)[str(path)], load_audio(path, channel=1))
    assert "has 2 channels, so there is no channel 3" in read(path, channel=2)[str(path)]


def test_kaldi_lists_and_their_pipes(audio, read, tmp_path):
    audio(tmp_path / "data/a.wav")
    flac = audio(tmp_path / "b.flac")
    mark = tmp_path / "ran"
    scp = tmp_path / "data/wav.scp"
    scp.write_text(
        f"one a.wav\ntwo flac -c -d -s {flac} |\nthree touch {mark}; cat {flac} |\nfour no.wav\n"
    )
    contents = read(scp)
    assert torch.equal(contents["one"], load_audio(tmp_path / "data/a.wav"))
    assert torch.equal(contents["two"], load_audio(flac))
    assert contents["three"].startswith("three: ")
    assert "--allow-pipes" in contents["three"]
    assert "no such audio file" in contents["four"]
    assert not mark.exists()
    contents = read(scp, allow_pipes=True)
    assert torch.equal(contents["three"], load_audio(flac))
    assert mark.exists()
    scp.write_text("one exit 3 |\n")
    assert "ended with status 3" in read(scp, allow_pipes=True)["one"]


@pytest.mark.parametrize("zipped", [False, True])
def test_cuts(audio, read, tmp_path, zipped):
    from lhotse import Recording
    from lhotse.cut import MonoCut

    path = audio(tmp_path / "x.wav", 2.0, channels=2)
    recording = Recording.from_file(path)
    whole = MonoCut("u1", 0.0, 2.0, 0, recording=recording)
    part = MonoCut("../u2", 0.5, 1.0, 1, recording=recording)
    faster = MonoCut("u3", 0.0, 1.0, 0, recording=recording).perturb_speed(1.1, affix_id=False)
    lines = "".join(json.dumps(cut.to_dict()) + "\n" for cut in (whole, part, faster))
    file = tmp_path / ("cuts.jsonl.gz" if zipped else "cuts.jsonl")
    with (gzip.open if zipped else open)(file, "wb") as opened:
        opened.write(lines.encode())
    contents = read(file)
    assert torch.equal(contents["u1"], load_audio(path, channel=0))
    assert torch.equal(contents["../u2"], load_audio(path, 16000, 0.5, 1.0, 1))
    assert len(contents["u3"]) == round(16000 / 1.1)
    assert read.keys == ["u1", "u2", "u3"]
    assert torch.equal(read(file, channel=1)["u1"], load_audio(path, channel=1))
    (tmp_path / "bad.jsonl").write_text('{"type": "x"}\n')
    with pytest.raises(SourceError, match=r"bad.jsonl:1"):
        read(tmp_path / "bad.jsonl")


def test_commands_in_cuts_are_not_run(audio, read, tmp_path):
    from lhotse import AudioSource, Recording

    clean = audio(tmp_path / "x.wav", 1.0)
    good = Recording.from_file(clean).to_cut()
    bad = Recording.from_file(clean, "bad").to_cut()
    bad.recording.sources = [AudioSource("command", [0], f"touch {tmp_path / 'ran'}; cat {clean}")]
    piped = json.dumps(bad.to_dict())
    mixed = good.append(bad).with_id("mixed").to_dict()
    room = good.reverb_rir(bad.recording).with_id("room").to_dict()
    cuts = [piped, json.dumps(mixed), json.dumps(room), json.dumps(good.with_id("good").to_dict())]
    (tmp_path / "cuts.jsonl").write_text("\n".join(cuts) + "\n")
    contents = read(tmp_path / "cuts.jsonl", allow_pipes=True)
    for name in ("bad", "mixed", "room"):
        assert "which is not run" in contents[name]
        assert f"{name}: " in contents[name]
    assert torch.equal(contents["good"], load_audio(clean))
    assert not (tmp_path / "ran").exists()


def test_standard_input(audio, read, tmp_path):
    path = audio(tmp_path / "x.wav", 0.5)
    second = audio(tmp_path / "y.wav", 0.2)
    assert list(read("-", stdin=f"{path}\n\n{second}\n".encode())) == [str(path), str(second)]
    assert torch.equal(read("-", stdin=path.read_bytes())["-"], load_audio(path))
    samples = np.arange(-500, 500, dtype="<i2")
    decoded = read("-", stdin=samples.tobytes(), raw_rate=16000)["-"]
    assert torch.equal(decoded, torch.from_numpy(samples / np.float32(32768)))
    with pytest.raises(SourceError, match=r"x\.csv is a table, not audio: .*data/test\.jsonl"):
        Inputs().sources(["x.csv"], io.BytesIO(), tmp_path)
    with pytest.raises(SourceError, match="--raw-rate"):
        read("-", stdin=b"\xff\xfe\x00\x80")


def test_names_in_standard_input_are_bytes_behind_a_byte_order_mark(tmp_path):
    listed = b"\xef\xbb\xbfx.wav\r\ncaf\xe9.wav\n"
    sources = Inputs().sources(["-"], io.BytesIO(listed), tmp_path)
    assert [source.called for source in sources] == ["x.wav", os.fsdecode(b"caf\xe9.wav")]


def test_a_link_to_its_own_folder_adds_no_recordings(audio, tmp_path):
    audio(tmp_path / "talks/x.wav", 0.1)
    (tmp_path / "talks/again").symlink_to(".")
    assert len(Inputs().sources([str(tmp_path / "talks")], io.BytesIO(), tmp_path)) == 1


def test_speakers_are_those_of_the_file_or_the_cut(audio, tmp_path):
    names = [str(audio(tmp_path / name, 0.1)) for name in ("a.wav", "b.wav", "c.wav")]
    file = tmp_path / "utt2spk"
    file.write_text(f"a one\n{names[1]} two\n")
    sources = Inputs(speakers=file).sources(names, io.BytesIO(), tmp_path)
    assert [source.speaker for source in sources] == ["one", "two", None]
    file.write_text("d one\n")
    with pytest.raises(SourceError, match=r"lists none of the recordings, such as .*a\.wav"):
        Inputs(speakers=file).sources(names, io.BytesIO(), tmp_path)
    file.write_text("a\n")
    with pytest.raises(InputError, match="a has no speaker"):
        Inputs(speakers=file).sources(names, io.BytesIO(), tmp_path)


def test_inputs_without_recordings_are_refused(read, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty.scp").write_text("\n")
    (tmp_path / "empty.jsonl").write_text("")
    for name in ("empty", "empty.scp", "empty.jsonl"):
        with pytest.raises(SourceError, match=name):
            read(tmp_path / name)
    assert "no such audio file" in read(tmp_path / "none.wav")[str(tmp_path / "none.wav")]


def test_results_of_one_name_are_refused(tmp_path):
    sources = Inputs().sources(["a/x.wav", "b/x.wav"], io.BytesIO(), tmp_path)
    with pytest.raises(SourceError, match=r"a/x.wav and b/x.wav"):
        check_keys(sources, ".txt")
    check_keys(sources[:1], ".txt")


def test_a_result_cannot_be_the_folder_of_another(tmp_path):
    scp = tmp_path / "wav.scp"
    scp.write_text("x.txt/y a.wav\nx b.wav\n")
    sources = Inputs().sources([str(scp)], io.BytesIO(), tmp_path)
    with pytest.raises(
        SourceError, match=r"results of x and x\.txt/y would both be written to x\.txt"
    ):
        check_keys(sources, ".txt")
    check_keys(sources, ".ctm")


def test_ids_that_become_the_same_path_are_refused(tmp_path):
    scp = tmp_path / "wav.scp"
    scp.write_text("//x a.wav\n../x b.wav\n")
    sources = Inputs().sources([str(scp)], io.BytesIO(), tmp_path)
    assert [source.key for source in sources] == ["x", "x"]
    with pytest.raises(SourceError, match=r"//x and \.\./x would both be written to x.txt"):
        check_keys(sources, ".txt")


def test_unused_files_that_may_be_audio_are_reported(audio, read, tmp_path, caplog):
    folder = tmp_path / "talks"
    audio(folder / "a.wav")
    (folder / "a.txt").write_text("the words")
    (folder / "a.mp4").write_bytes(b"\0\0\0\x14ftypmp42")
    (folder / "cover.webp").write_bytes(b"RIFF\x00\x01\x00\x00WEBPVP8 ")
    audio(tmp_path / "c.flac").rename(folder / "c")
    (folder / "d.dat").write_bytes(b"\xff\xf3\x44")
    assert list(read(folder)) == [str(folder / "a.wav")]
    (record,) = caplog.records
    expected = f"{folder}: left out 3 files that may be audio, such as {folder}/a.mp4"
    assert expected in record.getMessage()
    caplog.clear()
    for name in ("a.mp4", "c", "d.dat"):
        (folder / name).unlink()
    read(folder)
    assert not caplog.records


def test_a_kaldi_directory_is_not_taken_for_a_folder_or_a_list_of_utterances(
    audio, read, tmp_path, caplog
):
    path = audio(tmp_path / "x.wav")
    data = tmp_path / "data"
    data.mkdir()
    (data / "wav.scp").write_text(f"one {path}\n")
    with pytest.raises(SourceError, match=r"data is a Kaldi data directory: .*import-data"):
        read(data)
    assert torch.equal(read(data / "wav.scp")["one"], load_audio(path))
    assert not caplog.records
    (data / "segments").write_text("one-1 one 0.0 0.5\n")
    assert list(read(data / "wav.scp")) == ["one"]
    (record,) = caplog.records
    assert "not the segments in the same folder" in record.getMessage()
    (data / "lists.scp").write_text("one touch x; cat y |\n")
    assert f"{data}/lists.scp: touch x" in read(data / "lists.scp")["one"]


def test_a_list_that_assigns_channels_is_not_mixed(audio, read, tmp_path):
    stereo, mono = audio(tmp_path / "s.wav", channels=2), audio(tmp_path / "m.wav")
    scp = tmp_path / "wav.scp"
    scp.write_text(f"s-A {stereo}\ns-B {stereo}\nm {mono}\nt {stereo}\n")
    (tmp_path / "reco2file_and_channel").write_text("s-A s A\ns-B s B\nm m A\n")
    contents = read(scp)
    assert torch.equal(contents["s-A"], load_audio(stereo, channel=0))
    assert torch.equal(contents["s-B"], load_audio(stereo, channel=1))
    assert torch.equal(contents["m"], load_audio(mono))
    assert torch.equal(contents["t"], load_audio(stereo))
    (tmp_path / "reco2file_and_channel").write_text("s-A s A\ns-B s B\nm m A\nt s 3\n")
    assert read(scp)["t"] == f"t: no channel 3, but 2 channels in {stereo}"
    contents = read(scp, channel=1)
    assert torch.equal(contents["s-B"], load_audio(stereo, channel=1))
    assert "give --channel 1" in contents["s-A"]


def test_a_cut_of_an_imported_channel_is_read(audio, read, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    stereo = audio(tmp_path / "s.wav", channels=2)
    (data / "wav.scp").write_text(f"a {stereo}\nb {stereo}\n")
    (data / "text").write_text("a ONE\nb TWO\n")
    (data / "reco2file_and_channel").write_text("a s B\nb s C\n")
    write_cuts(read_kaldi_dir(data), tmp_path / "data.jsonl")
    contents = read(tmp_path / "data.jsonl")
    assert torch.equal(contents["a"], load_audio(stereo, channel=1))
    assert contents["b"] == f"b: no channel C, but 2 channels in {stereo}"


def test_cuts_of_an_array(audio, read, tmp_path):
    path = audio(tmp_path / "s.wav", channels=2)
    recording, _ = probe_recording(path, "s")
    cut = make_cut("u", recording, "X", "s", 0.25, 0.75, channel=1)
    (tmp_path / "cuts.json").write_text(json.dumps([cut.to_dict()]))
    decoded = read(tmp_path / "cuts.json")["u"]
    assert torch.equal(decoded, load_audio(path, 16000, 0.25, 0.5, channel=1))


def test_the_channel_of_results_is_that_of_the_list(audio, tmp_path):
    stereo = audio(tmp_path / "s.wav", channels=2)
    scp = tmp_path / "wav.scp"
    scp.write_text(f"a {stereo}\nb sph2pipe -f wav -p -c 2 {stereo} |\n")
    (tmp_path / "reco2file_and_channel").write_text("a s A\n")
    sources = Inputs().sources([str(scp), str(stereo)], None, tmp_path)
    assert [source.channel for source in sources] == ["A", "2", "1"]
    (source,) = Inputs(channel=1).sources([str(stereo)], None, tmp_path)
    assert source.channel == "2"


def test_mp3_without_tags_comes_through_standard_input(read, tmp_path):
    samples = np.sin(np.arange(16000) / 20).astype(np.float32) / 3
    path = tmp_path / "x.mp3"
    soundfile.write(path, samples, 16000, format="MP3")
    data = path.read_bytes()
    assert data[0] == 0xFF
    assert torch.equal(read("-", stdin=data)["-"], load_audio(path))
    with pytest.raises(SourceError, match="neither a list of paths nor an audio file"):
        read("-", stdin="x.wav\n".encode("utf-16"))


@pytest.mark.parametrize("stdin", [b"", b"\n \n"])
def test_empty_standard_input_is_no_list_of_paths(read, stdin):
    with pytest.raises(SourceError, match="standard input is empty"):
        read("-", stdin=stdin)


@pytest.mark.parametrize(
    ("ids", "remedy"), [("stem", "--ids relative.* or --ids path"), ("relative", "with --ids path")]
)
def test_a_remedy_for_equal_names_is_advised(tmp_path, ids, remedy):
    inputs = Inputs(ids=ids)
    sources = inputs.sources(["x/s.wav", "s.flac"], io.BytesIO(), tmp_path)
    with pytest.raises(SourceError, match=f"have the same id s: .*{remedy}"):
        check_ids(sources, ids)
    check_ids(Inputs(ids="path").sources(["x/s.wav", "s.flac"], io.BytesIO(), tmp_path), "path")
    duplicates = Inputs(ids="path").sources(["s.flac", "s.flac"], io.BytesIO(), tmp_path)
    with pytest.raises(SourceError, match="give it only once"):
        check_ids(duplicates, "path")
    duplicates = inputs.sources(["x/../s.wav", "s.wav"], io.BytesIO(), tmp_path)
    with pytest.raises(SourceError, match="the same file: give it only once"):
        check_ids(duplicates, ids)
    for kind in (ids, "path"):
        spaced = Inputs(ids=kind).sources(["x y/a b.wav", "x y/a_b.wav"], io.BytesIO(), tmp_path)
        with pytest.raises(SourceError, match="rename one"):
            check_ids(spaced, kind)
    (tmp_path / "wav.scp").write_text("u1 a.wav\nu1 b.wav\n")
    listed = inputs.sources([str(tmp_path / "wav.scp")], io.BytesIO(), tmp_path)
    with pytest.raises(SourceError, match="id u1: rename one"):
        check_ids(listed, ids)


def test_a_truncated_file_is_reported(audio, read, tmp_path, caplog):
    path = audio(tmp_path / "x.wav", 1.0)
    read(path)
    assert not caplog.records
    whole = path.read_bytes()
    path.write_bytes(whole[: 44 + (len(whole) - 44) // 2])
    assert len(read(path)[str(path)]) == 8000
    (record,) = caplog.records
    assert f"{path}: truncated: its last 0.50 s are missing" in record.getMessage()


def test_channels_that_cancel_are_reported(read, tmp_path, caplog):
    path, noise = tmp_path / "x.wav", np.random.default_rng(0)
    first, second = noise.uniform(-0.5, 0.5, (2, 16000))

    def logged_messages(*channels, **options):
        caplog.clear()
        soundfile.write(path, np.stack(channels, axis=1), 16000)
        read(path, **options)
        return [record.getMessage() for record in caplog.records]

    (message,) = logged_messages(first, -first + second / 1000)
    assert message.startswith(f"{path}: its channels cancel")
    assert "--channel" in message
    assert not logged_messages(first, -first, channel=0)
    for channels in (
        (first, second),
        (first, first),
        (0 * first, 0 * first),
        (first, 0 * first),
        (first, -first / 2),
    ):
        assert not logged_messages(*channels)


def test_files_are_read_where_standard_input_is_closed(audio, tmp_path):
    path = audio(tmp_path / "x.wav")
    assert len(Inputs().sources([str(path)], None, tmp_path)) == 1
    with pytest.raises(SourceError, match="standard input is closed"):
        Inputs().sources(["-"], None, tmp_path)


def test_faults_of_standard_input_name_it(audio, read, tmp_path, caplog):
    path = audio(tmp_path / "x.wav", 0.5)
    assert read("-", stdin=path.read_bytes()[:44])["-"].startswith("standard input: no samples")
    assert "standard input" in read("-", stdin=b"fLaC and nothing else")["-"]
    data = path.read_bytes()
    read("-", stdin=data[: len(data) // 2])
    (record,) = caplog.records
    assert record.getMessage().startswith("standard input: truncated")
