"""Recordings to transcripts: with a bundle of two words, cut in pauses, shared out to processes."""

import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import soundfile
import torch

from toolkit.decode import transcribe as module
from toolkit.decode.bundle import BundleError
from toolkit.decode.config import SegmentConfig
from toolkit.decode.decoded import Transcript
from toolkit.decode.recogniser import NetworkRecogniser, load_recogniser
from toolkit.decode.sources import Inputs, Source
from toolkit.decode.transcribe import (
    Segmenter,
    partition_by_speaker,
    transcribe,
    transcribe_in_processes,
)

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
    transcripts = list(transcribe(folder, sources(paths, tmp_path)))
    assert [transcript.name for transcript in transcripts] == [path.stem for path in paths]
    for transcript, path in zip(transcripts, paths, strict=True):
        if path in good:
            samples = torch.from_numpy(soundfile.read(path, dtype="float32")[0])
            assert transcript.text == recogniser.recognise(samples)
            (utterance,) = transcript.utterances
            assert (utterance.start_s, utterance.end_s, utterance.words) == (0.0, 1.5, None)
        else:
            assert transcript.fault.startswith(f"{path}: ")
            assert transcript.utterances == ()


@pytest.mark.parametrize("batch", [1, 3, 16])
def test_a_speakers_mean_runs_on_from_recording_to_recording(
    batch, bundle, babble, save, tmp_path, monkeypatch
):
    frame_counts = []
    recognise = NetworkRecogniser.recognise_batch

    def spy(recogniser, utterances, details=False):
        frame_counts.extend((state.frames, len(features)) for features, state in utterances)
        return recognise(recogniser, utterances, details)

    monkeypatch.setattr(NetworkRecogniser, "recognise_batch", spy)
    paths = [save(f"{n}.wav", babble(n, 1.5).clamp(-0.9, 0.9)) for n in range(5)]
    speakers = ["ann", "ben", "ann", None, None]
    recordings = sources(paths, tmp_path)
    named = [
        replace(recording, speaker=speaker)
        for recording, speaker in zip(recordings, speakers, strict=True)
    ]
    list(transcribe(bundle(), named, batch=batch))
    previous_frames = [frames for frames, _ in frame_counts]
    assert previous_frames == [0, 0, frame_counts[0][1], 0, 0]


def test_long_recordings_are_cut_and_their_words_timed(bundle, babble, save, tmp_path):
    folder = bundle()
    pause = torch.randn(16000, generator=torch.Generator().manual_seed(0)) / 1e4
    parts = [part for seed in range(8) for part in (babble(seed, 2.0).clamp(-0.9, 0.9), pause)]
    path = save("long.wav", torch.cat(parts))
    (transcript,) = transcribe(folder, sources([path], tmp_path), details=True, config=SHORT)
    assert not transcript.fault
    assert len(transcript.utterances) >= 6
    previous_end_s = 0.0
    for utterance in transcript.utterances:
        assert previous_end_s <= utterance.start_s < utterance.end_s <= 24.0
        assert utterance.end_s - utterance.start_s <= 4.7
        assert utterance.text == " ".join(word.token for word in utterance.words)
        for word in utterance.words:
            assert utterance.start_s <= word.start_s < word.end_s <= utterance.end_s
        previous_end_s = utterance.end_s
    assert transcript.text.split()


def test_batches_change_neither_words_nor_their_order(bundle, babble, save, truncate, tmp_path):
    parts = [babble(seed, 2.0).clamp(-0.9, 0.9) for seed in range(8)]
    broken = tmp_path / "broken.flac"
    soundfile.write(broken, torch.cat(parts * 3), 16000)
    truncate(broken)
    long, empty = save("long.wav", torch.cat(parts)), save("empty.wav", torch.zeros(100))
    short = [save(f"{n}.wav", babble(n, 0.5 + n / 2).clamp(-0.9, 0.9)) for n in range(4)]
    paths, folder = [*short[:2], long, broken, empty, *short[2:]], bundle()
    unbatched = list(transcribe(folder, sources(paths, tmp_path), details=True, config=SHORT))
    assert [transcript.name for transcript in unbatched if transcript.fault] == ["broken", "empty"]
    for batch in (2, 5, 100):
        transcripts = transcribe(
            folder, sources(paths, tmp_path), details=True, config=SHORT, batch=batch
        )
        for transcript, expected in zip(transcripts, unbatched, strict=True):
            assert (transcript.name, transcript.text, transcript.fault) == (
                expected.name,
                expected.text,
                expected.fault,
            )
            times = [
                [(u.start_s, u.end_s, [w[1:3] for w in u.words]) for u in result.utterances]
                for result in (transcript, expected)
            ]
            assert times[0] == times[1]


def test_a_transcript_is_yielded_before_the_next_recording_is_read(bundle, babble, save, tmp_path):
    paths = [save(f"{n}.wav", babble(n, 1.0).clamp(-0.9, 0.9)) for n in range(2)]
    first, second = sources(paths, tmp_path)

    def unread(rate, seconds):
        raise AssertionError("read too early")

    transcripts = transcribe(bundle(), [first, replace(second, blocks=unread)])
    assert next(transcripts).name == "0"


def test_a_long_recording_that_breaks_off_is_a_fault(bundle, babble, save, truncate, tmp_path):
    path = tmp_path / "cut.flac"
    soundfile.write(path, torch.cat([babble(s, 10.0) for s in range(6)]).clamp(-0.9, 0.9), 16000)
    truncate(path)
    (transcript,) = transcribe(bundle(), sources([path], tmp_path), config=SHORT)
    assert "truncated" in transcript.fault


def test_a_bundle_can_be_moved_and_stores_no_paths(bundle, babble, recogniser, tmp_path):
    original = bundle()
    samples = babble(4, 2.0)
    expected = NetworkRecogniser(original).recognise_features(
        NetworkRecogniser(original).frontend(samples), None, True
    )
    for path in original.rglob("*"):
        if path.is_file():
            assert str(tmp_path).encode() not in path.read_bytes(), path
    elsewhere = shutil.move(original, tmp_path / "elsewhere")
    for folder in ("lang", "lstm"):  # of the run
        shutil.rmtree(recogniser.folder / folder)
    recogniser.graph.unlink()
    moved = NetworkRecogniser(elsewhere)
    assert moved.recognise_features(moved.frontend(samples), None, True) == expected


def test_invalid_bundles_are_refused(bundle, tmp_path):
    with pytest.raises(BundleError, match="is not a bundle"):
        NetworkRecogniser(tmp_path)
    with pytest.raises(BundleError, match="is not a bundle"):
        load_recogniser(tmp_path, int8=True)
    with pytest.raises(BundleError, match="only for CTC networks on the CPU"):
        load_recogniser(bundle(), int8=True)
    broken = bundle()
    (broken / "recogniser.json").write_text('{"frontend": 3}')
    with pytest.raises(BundleError, match=r"recogniser.json"):
        NetworkRecogniser(broken)


SHIFT = 0.01
SEGMENT_CONFIG = SegmentConfig(longest=6.0, shortest=1.0)


def recording(rng, seconds, noise=0.0):
    """Log energies of stretches of speech (loud) and pauses: features [T, 4], speech [T]."""
    speech = []
    while len(speech) < seconds * 100:
        speech += [1] * int(rng.integers(50, 300)) + [0] * int(rng.choice([8, 20, 45, 90, 300]))
    speech = np.array(speech[: round(seconds * 100)])
    syllables = 1.5 * np.sin(np.arange(len(speech)) / 4)
    energy = np.where(speech, 12 + syllables, 4 + noise) + rng.normal(0, 0.3, len(speech))
    features = torch.tensor(energy[:, None] + rng.normal(0, 0.2, (len(speech), 4)))
    return features.float(), speech


def segments(features, silence, piece, config=SEGMENT_CONFIG):
    segmenter, speech_segments, max_buffered = Segmenter(config, SHIFT), [], 0
    for begin in range(0, len(features), piece):
        part = slice(begin, begin + piece)
        speech_segments += segmenter.push(
            features[part], None if silence is None else silence[part]
        )
        max_buffered = max(max_buffered, segmenter.num_buffered_frames)
    return [*speech_segments, *segmenter.finish()], max_buffered


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("has_silence_scores", [False, True])
@pytest.mark.parametrize("piece", [100, 1000])
def test_speech_is_kept_and_cut_in_pauses(seed, has_silence_scores, piece):
    features, speech = recording(np.random.default_rng(seed), 60)
    silence = torch.tensor(1 - speech).float() if has_silence_scores else None
    speech_segments, max_buffered = segments(features, silence, piece)
    assert max_buffered <= piece + 600 + 2 * 30
    covered, at, cuts_in_speech = np.zeros(len(speech), bool), 0, 0
    for segment in speech_segments:
        end = segment.start + len(segment.features)
        assert segment.start >= at
        assert len(segment.features) <= 600 + 2 * 30
        assert torch.equal(segment.features, features[segment.start : end])
        cuts_in_speech += bool(end < len(speech) and speech[end - 1] and speech[end])
        covered[segment.start : end], at = True, end
    assert covered[speech == 1].mean() > 0.999
    assert len(speech_segments) >= 5
    # Pauses of 0.2 s and less are not looked for: a run of stretches may have no others.
    assert cuts_in_speech <= (1 if has_silence_scores else 2)
    if has_silence_scores:
        assert covered.mean() < 0.98 or (speech == 0).mean() < 0.15
    else:  # energy alone leaves nothing out
        assert covered.all()


def test_without_a_pause_the_cut_is_at_the_lowest_energy():
    energy = 10 + 1.5 * (torch.arange(2000.0) / 4).sin()[:, None]
    energy[445:465] = 8.5
    config = SegmentConfig(longest=6.0, shortest=1.0, pause=0.5)
    speech_segments, _ = segments(energy, None, 500, config)
    assert 440 < len(speech_segments[0].features) < 470
    assert all(len(segment.features) <= 600 for segment in speech_segments)
    assert sum(len(segment.features) for segment in speech_segments) == 2000


@pytest.mark.parametrize("has_silence_scores", [False, True])
def test_an_early_pause_is_used_when_there_is_no_other(has_silence_scores):
    """Speech with a pause from 0.8 to 2.0 s, where segments may end from 1 s on."""
    speech = torch.ones(2000)
    speech[80:200] = 0
    energy = 4 + speech[:, None] * (8 + 1.5 * (torch.arange(2000.0) / 4).sin()[:, None])
    speech_segments, _ = segments(energy, 1 - speech if has_silence_scores else None, 500)
    assert len(speech_segments[0].features) == pytest.approx(
        130 if has_silence_scores else 150, abs=5
    )
    assert 120 < speech_segments[1].start < 200


def test_noise_alone_is_no_speech():
    noise = torch.randn(3000, 1, generator=torch.Generator().manual_seed(0)) / 5
    silence = torch.full((3000,), 0.95)
    assert segments(noise + 7, silence, 700)[0] == []
    assert segments(noise * 0 - 15.9, silence, 700)[0] == []  # digital silence
    # Where nothing but energy is known it is kept: better that than to lose speech in noise.
    speech_segments, _ = segments(noise + 7, None, 700)
    assert sum(len(segment.features) for segment in speech_segments) == 3000


def test_settings_that_contradict_each_other_are_refused():
    for wrong in ({"longest": 4.0}, {"pause": 0.0}, {"threshold": 1.0}, {"margin": -1.0}):
        with pytest.raises(ValueError, match="must be"):
            SegmentConfig(**wrong)


def unread_sources(*speakers):
    return [Source(f"u{n}", f"u{n}", print, speaker) for n, speaker in enumerate(speakers)]


def test_partition_keeps_speakers_together_and_loses_nothing():
    recordings = unread_sources("a", None, "b", "a", None, "b", "a", "c")
    shares = partition_by_speaker(recordings, 3)
    assert sorted(n for share in shares for n in share) == list(range(8))
    owner = {n: k for k, share in enumerate(shares) for n in share}
    assert owner[0] == owner[3] == owner[6]
    assert owner[2] == owner[5]
    assert max(map(len, shares)) == 3
    assert partition_by_speaker(recordings[:1], 3) == [[0]]


def transcribe_names(model, sources, details, device, fast, int8, batch):
    for source in sources:
        yield Transcript(f"{source.name} of {len(sources)}", source.key)


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_come_in_the_order_of_the_sources(monkeypatch, jobs):
    def in_this_process(function, items, jobs):
        return map(function, items)

    monkeypatch.setattr(module, "transcribe", transcribe_names)
    monkeypatch.setattr(module, "map_in_processes", in_this_process)
    transcripts = transcribe_in_processes(
        "m", unread_sources("a", "b", "a"), jobs, False, "cpu", False
    )
    sizes = [3, 3, 3] if jobs == 1 else [2, 1, 2]
    assert [transcript.name for transcript in transcripts] == [
        f"u{n} of {size}" for n, size in enumerate(sizes)
    ]


def test_sources_of_files_can_be_handed_to_processes(tmp_path, audio):
    import io
    import pickle

    from toolkit.decode.sources import Inputs

    path = audio(tmp_path / "a.wav", 0.2)
    (source,) = Inputs().sources([str(path)], io.BytesIO(), tmp_path)
    assert isinstance(source.blocks, partial)
    (block,) = pickle.loads(pickle.dumps(source)).blocks(16000, 1.0)
    assert len(block) == 3200
