import dataclasses
import shutil

import numpy as np
import pytest
import soundfile

from local.farfield.config import FarfieldConfig
from local.farfield.rooms import FarfieldError
from local.farfield.sets import make_farfield, manifests
from toolkit.corpus.manifest import audio_of, make_cut, probe_recording, speaker_of, text_of
from toolkit.features.cut_audio import load_cut_audio
from toolkit.features.multichannel.beamforming import load_array, load_components
from toolkit.pipeline.lake import Record, open_lake, resolve
from toolkit.pipeline.objects import ObjectStore

RATE = 16000


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Clean bursts of noise by ten speakers, two impulse responses per pool and placement."""
    root = tmp_path_factory.mktemp("source")
    rng = np.random.default_rng(1)
    parts = {"train": [], "dev": [], "test": []}
    for part, speakers in {"train": 4, "dev": 1, "test": 2}.items():
        for number in range(4 * speakers if part != "test" else 10):
            speaker = f"{part}{number % speakers}"
            id = f"{speaker}-{number:02d}"
            length = int(rng.integers(6400, 9600))
            bursts = np.repeat(rng.random(20) < 0.7, -(-length // 20))[:length]
            soundfile.write(root / f"{id}.wav", 0.1 * bursts * rng.standard_normal(length), RATE)
            recording, _ = probe_recording(root / f"{id}.wav", id)
            parts[part].append(make_cut(id, recording, f"SECRET {id}", speaker))
    again = dataclasses.replace(parts["dev"][1])  # an id twice, as in a list that has a line twice
    again.supervisions = [dataclasses.replace(again.supervisions[0], text="ANOTHER")]
    parts["dev"].append(again)
    for folder in ("responses", "noise"):
        (root / folder).mkdir()
    for number in range(20):
        tail = (
            rng.standard_normal((2400, 2)) * np.exp(-np.arange(2400) / (20 + 30 * number))[:, None]
        )
        tail[0] = 3.0
        soundfile.write(root / "responses" / f"{number:02d}.wav", 0.1 * tail, RATE)
    for number in range(4):
        noise = 0.1 * rng.standard_normal(16000)
        soundfile.write(root / "noise" / f"{number}.wav", noise, RATE)
    config = FarfieldConfig(
        labelled_hours=0.001,
        unlabelled_hours=0.001,
        val_hours=0.001,
        test_hours=0.0003,
        array_hours=0.0001,
        labelled_speakers=0.5,
        talker_db_spl=(90.0, 90.0),
        responses=root / "responses",
        noise=root / "noise",
    )
    return parts, config


@pytest.fixture(scope="module")
def farfield(source, tmp_path_factory):
    parts, config = source
    out = tmp_path_factory.mktemp("made") / "out"
    progress = []
    hours = make_farfield(parts, config, out, 1, lambda *done: progress.append(done))
    assert (
        progress[-1][0] == progress[-1][1] == sum(map(len, manifests(out).values())) - _extra(out)
    )
    return out, hours


def _extra(out):
    """Count the cuts that are another version of a cut in another set."""
    sets = manifests(out)
    versions = ("clean", "raw", "array")
    return sum(len(cuts) for name, cuts in sets.items() if name.split("-")[-1] in versions)


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_sets_have_cuts_that_can_be_read(source, farfield):
    sets, (out, hours) = manifests(farfield[0]), farfield
    tests = [f"DP{number}" for number in range(1, 6)]
    assert list(sets) == ["train", "clean", "unlabelled", "val", "val-clean", *tests] + [
        f"{name}-{kind}" for name in tests for kind in ("raw", "array")
    ]
    for name, cuts in sets.items():
        assert cuts
        assert hours[name] == pytest.approx(sum(cut.duration for cut in cuts) / 3600)
        assert [cut.id for cut in cuts] == sorted(cut.id for cut in cuts)
    for name in ("train", "val", "unlabelled", *tests):
        for cut in sets[name]:
            assert len(load_cut_audio(cut)) == round(cut.duration * RATE)
            assert cut.recording.num_channels == 1
            assert cut.custom["placement"] == (name if name in tests else cut.custom["placement"])
    assert not (out / ".pools").exists()


def test_far_field_speech_has_the_text_and_time_of_the_clean_one(farfield):
    sets = manifests(farfield[0])
    pairs = [
        *zip(sets["train"], sets["clean"], strict=True),
        *zip(sets["val"], sets["val-clean"], strict=True),
    ]
    assert len(sets["val"]) == 4
    for far, clean in pairs:
        assert far.id == clean.id
        assert text_of(far) == text_of(clean) == f"SECRET {far.id}"
        assert speaker_of(far) == speaker_of(clean)
        assert far.duration == clean.duration
        far_audio, clean_audio = load_cut_audio(far).numpy(), load_cut_audio(clean).numpy()
        if far.custom["placement"] in ("DP1", "DP2") and "echo_db" not in far.custom:
            lag = int(np.abs(np.correlate(far_audio, clean_audio, "full")).argmax()) - (
                len(clean_audio) - 1
            )
            assert lag == 0


def test_transcripts_of_unlabelled_speech_are_in_no_file(source, farfield):
    parts, _ = source
    sets = manifests(farfield[0])
    cuts = sets["unlabelled"]
    assert all(text_of(cut) == "" for cut in cuts)
    assert not {cut.id for cut in cuts} & {cut.id for cut in sets["train"]}
    texts = {cut.id: text_of(cut) for cut in parts["train"]}
    everything = b"\n".join(contents(farfield[0]).values())
    for cut in cuts:
        assert texts[cut.id].encode() not in everything
    assert text_of(sets["train"][0]).encode() in everything


def test_unlabelled_speech_is_a_lake(farfield):
    out, _ = farfield
    cuts = {cut.id: cut for cut in manifests(out)["unlabelled"]}
    store = ObjectStore()
    lake = open_lake(store, str(out / "lake"))
    records = [
        Record.from_line(line) for ref in lake.objects for line in store.get(ref).splitlines()
    ]
    assert {record.id for record in records} == set(cuts)
    for record in records:
        cut = cuts[record.id]
        assert resolve(record.audio, lake.url) == audio_of(cut)
        assert (record.speaker, record.duration) == (speaker_of(cut), cut.duration)
        assert record.time == cut.custom["time"]
        assert not record.audio.startswith("/")
    for speaker in {speaker_of(cut) for cut in cuts.values()}:
        times = [cut.custom["time"] for cut in cuts.values() if speaker_of(cut) == speaker]
        assert times == sorted(times)


def test_arrays_hold_the_first_microphone_and_its_parts(farfield):
    sets = manifests(farfield[0])
    plays = 0
    for number in range(1, 6):
        mono = {cut.id: cut for cut in sets[f"DP{number}-raw"]}
        device_cuts = {cut.id: cut for cut in sets[f"DP{number}"]}
        for cut in sets[f"DP{number}-array"]:
            audio, parts = load_array(cut), load_components(cut)
            assert audio.microphones.shape == (2, round(cut.duration * RATE))
            np.testing.assert_array_equal(audio.microphones[0], load_cut_audio(mono[cut.id]))
            assert text_of(cut) == text_of(mono[cut.id]) == text_of(device_cuts[cut.id])
            assert "device_snr_gain_db" in cut.custom
            assert ("device_erle_db" in cut.custom) == ("echo_db" in cut.custom)
            raw, device = (load_cut_audio(cuts[cut.id]) for cuts in (mono, device_cuts))
            # Of unknown positions a microphone is heard; where nothing is played, as it is.
            assert not ("echo_db" in cut.custom and np.array_equal(raw, device))
            noise = audio.microphones[0] - parts.speech[0] - parts.echo[0]
            snr = 10 * np.log10(np.mean(parts.speech[0] ** 2) / np.mean(noise**2))
            assert snr == pytest.approx(cut.custom["snr_db"], abs=0.3)
            if "echo_db" in cut.custom:
                plays += 1
                assert audio.playback.any()
                ratio = 10 * np.log10(np.mean(parts.speech[0] ** 2) / np.mean(parts.echo[0] ** 2))
                assert ratio == pytest.approx(cut.custom["echo_db"], abs=0.2)
            else:
                assert not audio.playback.any()
                assert not parts.echo.any()
    assert plays > 0


def test_bytes_do_not_depend_on_jobs_or_on_interruptions(source, farfield, tmp_path):
    parts, config = source
    out, hours = farfield
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    shutil.rmtree(copy / "cuts")
    (copy / "lake" / "audio" / "0000").rename(copy / "lake" / "audio" / ".0000.partial")
    for split in ("DP1", "DP4", "train"):
        shutil.rmtree(copy / "audio" / split)
    assert make_farfield(parts, config, copy, jobs=2) == hours
    assert contents(copy) == contents(out)


def test_without_the_front_end_sets_are_the_first_microphone(source, tmp_path):
    parts, config = source
    make_farfield(parts, dataclasses.replace(config, frontend="microphone"), tmp_path / "out")
    sets = manifests(tmp_path / "out")
    cuts = {cut.id: cut for cut in sets["DP1"]}
    for cut in sets["DP1-raw"]:
        np.testing.assert_array_equal(load_cut_audio(cut), load_cut_audio(cuts[cut.id]))
        assert "device_snr_gain_db" not in cut.custom


def test_other_settings_are_not_mixed_in(source, farfield):
    parts, config = source
    with pytest.raises(FarfieldError, match="with other settings"):
        make_farfield(parts, dataclasses.replace(config, seed=2), farfield[0])


def test_unreadable_audio_is_listed_and_missing_hours_are_a_warning(source, tmp_path, caplog):
    parts, config = source
    broken = tmp_path / "broken.wav"
    broken.write_bytes(b"RIFF" + bytes(60))
    parts = {name: list(cuts) for name, cuts in parts.items()}
    source_cut = parts["dev"][0]
    recording = dataclasses.replace(source_cut.recording)
    recording.sources = [dataclasses.replace(recording.sources[0], source=str(broken))]
    parts["dev"][0] = dataclasses.replace(source_cut, recording=recording)
    hours = make_farfield(parts, dataclasses.replace(config, val_hours=0.01), tmp_path / "out")
    assert 0 < hours["val"] < 0.001
    assert f"val has {hours['val']:.3g} h of speech, less than the requested 0.01" in caplog.text
    assert "DP1: " not in caplog.text
    left_out = (tmp_path / "out" / "left_out.tsv").read_text().splitlines()
    assert [line.split("\t")[0] for line in left_out] == [source_cut.id, parts["dev"][1].id]
    assert str(broken) in left_out[0]
    assert f"left out 1 utterances: {left_out[0].partition(chr(9))[2]}" in caplog.text


@pytest.mark.long
def test_rooms_are_computed_without_recorded_responses(source, tmp_path):
    pytest.importorskip("pyroomacoustics")
    parts, config = source
    config = dataclasses.replace(
        config, responses=None, train_rooms=1, test_rooms=1, talkers=1, arrays=("circle-6",)
    )
    make_farfield(parts, config, tmp_path / "out")
    for name, cuts in manifests(tmp_path / "out").items():
        if name.endswith("array"):
            assert load_array(cuts[0]).microphones.shape[0] == 6
    harder = config.placements["DP5"].t60_seconds
    cut = manifests(tmp_path / "out")["DP5"][0]
    assert harder[0] <= cut.custom["t60"] <= harder[1]
