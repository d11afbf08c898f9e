"""Recordings to transcripts with a bundle of two words."""

import shutil
from dataclasses import replace

import pytest
import soundfile
import torch

from toolkit.decode.bundle import BundleError
from toolkit.decode.config import SegmentConfig
from toolkit.decode.recogniser import NetworkRecogniser, load_recogniser
from toolkit.decode.sources import Inputs
from toolkit.decode.transcribe import transcribe

SHORT = SegmentConfig(longest=4.0, shortest=1.0)


def sources(paths, tmp_path):
    return Inputs().sources(list(map(str, paths)), None, tmp_path)


@pytest.fixture
def save(tmp_path):
    def write(name, samples, rate=16000):
        soundfile.write(tmp_path / name, samples.numpy(), rate, subtype="PCM_16")
        return tmp_path / name

    return write


def test_recordings_short_and_broken(bundle, babble, save, tmp_path):
    recogniser = NetworkRecogniser(folder := bundle())
    good = [save(f"{seed}.wav", babble(seed, 1.5).clamp(-0.9, 0.9)) for seed in range(3)]
    click, missing = save("click.wav", torch.zeros(30)), tmp_path / "missing.wav"
    paths = [good[0], click, good[1], missing, good[2]]
    found = list(transcribe(folder, sources(paths, tmp_path)))
    assert [one.name for one in found] == [path.stem for path in paths]
    for one, path in zip(found, paths, strict=True):
        if path in good:
            samples = torch.from_numpy(soundfile.read(path, dtype="float32")[0])
            assert one.text == recogniser.recognise(samples)
            (utterance,) = one.utterances
            assert (utterance.start_s, utterance.end_s, utterance.words) == (0.0, 1.5, None)
        else:
            assert one.fault.startswith(f"{path}: ")
            assert one.utterances == ()


@pytest.mark.parametrize("batch", [1, 3, 16])
def test_a_speakers_mean_runs_on_from_recording_to_recording(
    batch, bundle, babble, save, tmp_path, monkeypatch
):
    heard = []
    recognise = NetworkRecogniser.recognise_batch

    def spy(recogniser, utterances, details=False):
        heard.extend((state.frames, len(features)) for features, state in utterances)
        return recognise(recogniser, utterances, details)

    monkeypatch.setattr(NetworkRecogniser, "recognise_batch", spy)
    paths = [save(f"{n}.wav", babble(n, 1.5).clamp(-0.9, 0.9)) for n in range(5)]
    speakers = ["ann", "ben", "ann", None, None]
    found = sources(paths, tmp_path)
    named = [replace(one, speaker=who) for one, who in zip(found, speakers, strict=True)]
    list(transcribe(bundle(), named, batch=batch))
    before = [frames for frames, _ in heard]
    assert before == [0, 0, heard[0][1], 0, 0]


def test_long_recordings_are_cut_and_their_words_timed(bundle, babble, save, tmp_path):
    folder = bundle()
    pause = torch.randn(16000, generator=torch.Generator().manual_seed(0)) / 1e4
    parts = [part for seed in range(8) for part in (babble(seed, 2.0).clamp(-0.9, 0.9), pause)]
    path = save("long.wav", torch.cat(parts))
    (found,) = transcribe(folder, sources([path], tmp_path), details=True, config=SHORT)
    assert not found.fault
    assert len(found.utterances) >= 6
    at = 0.0
    for one in found.utterances:
        assert at <= one.start_s < one.end_s <= 24.0
        assert one.end_s - one.start_s <= 4.7
        assert one.text == " ".join(word.token for word in one.words)
        for word in one.words:
            assert one.start_s <= word.start_s < word.end_s <= one.end_s
        at = one.end_s
    assert found.text.split()


def test_batches_change_neither_words_nor_their_order(bundle, babble, save, truncate, tmp_path):
    parts = [babble(seed, 2.0).clamp(-0.9, 0.9) for seed in range(8)]
    broken = tmp_path / "broken.flac"
    soundfile.write(broken, torch.cat(parts * 3), 16000)
    truncate(broken)
    long, empty = save("long.wav", torch.cat(parts)), save("empty.wav", torch.zeros(100))
    short = [save(f"{n}.wav", babble(n, 0.5 + n / 2).clamp(-0.9, 0.9)) for n in range(4)]
    paths, folder = [*short[:2], long, broken, empty, *short[2:]], bundle()
    alone = list(transcribe(folder, sources(paths, tmp_path), details=True, config=SHORT))
    assert [one.name for one in alone if one.fault] == ["broken", "empty"]
    for batch in (2, 5, 100):
        found = transcribe(
            folder, sources(paths, tmp_path), details=True, config=SHORT, batch=batch
        )
        for one, wanted in zip(found, alone, strict=True):
            assert (one.name, one.text, one.fault) == (wanted.name, wanted.text, wanted.fault)
            times = [
                [(u.start_s, u.end_s, [w[1:3] for w in u.words]) for u in each.utterances]
                for each in (one, wanted)
            ]
            assert times[0] == times[1]


def test_a_transcript_does_not_wait_for_a_recording_that_is_not_read_yet(
    bundle, babble, save, tmp_path
):
    paths = [save(f"{n}.wav", babble(n, 1.0).clamp(-0.9, 0.9)) for n in range(2)]
    first, second = sources(paths, tmp_path)

    def unread(rate, seconds):
        raise AssertionError("read too early")

    found = transcribe(bundle(), [first, replace(second, blocks=unread)])
    assert next(found).name == "0"


def test_a_long_recording_that_breaks_off_is_a_fault(bundle, babble, save, truncate, tmp_path):
    path = tmp_path / "cut.flac"
    soundfile.write(path, torch.cat([babble(s, 10.0) for s in range(6)]).clamp(-0.9, 0.9), 16000)
    truncate(path)
    (found,) = transcribe(bundle(), sources([path], tmp_path), config=SHORT)
    assert "truncated" in found.fault


def test_a_bundle_moves_and_names_no_place(bundle, babble, recogniser, tmp_path):
    made = bundle()
    samples = babble(4, 2.0)
    expected = NetworkRecogniser(made).recognise_features(
        NetworkRecogniser(made).frontend(samples), None, True
    )
    for path in made.rglob("*"):
        if path.is_file():
            assert str(tmp_path).encode() not in path.read_bytes(), path
    elsewhere = shutil.move(made, tmp_path / "elsewhere")
    for folder in ("lang", "lstm"):  # of the run
        shutil.rmtree(recogniser.folder / folder)
    recogniser.graph.unlink()
    moved = NetworkRecogniser(elsewhere)
    assert moved.recognise_features(moved.frontend(samples), None, True) == expected


def test_what_is_no_bundle_is_said(bundle, tmp_path):
    with pytest.raises(BundleError, match="is not a bundle"):
        NetworkRecogniser(tmp_path)
    with pytest.raises(BundleError, match="is not a bundle"):
        load_recogniser(tmp_path, int8=True)
    with pytest.raises(BundleError, match="only CTC networks on the CPU"):
        load_recogniser(bundle(), int8=True)
    broken = bundle()
    (broken / "recogniser.json").write_text('{"frontend": 3}')
    with pytest.raises(BundleError, match=r"recogniser.json"):
        NetworkRecogniser(broken)
