"""Clustering of recordings into speakers."""

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.corpus.manifest import (
    NO_SPEAKER,
    flag_missing_speaker,
    make_cut,
    probe_recording,
    speaker_of,
)
from toolkit.features import speakers as module
from toolkit.features.speakers import (
    PENALTY,
    PRIOR_FRAMES,
    FrameStatistics,
    SpeakerClusteringError,
    cluster_recordings,
    name_speakers,
)

RATE = 16000


def criterion(frames, mean_covariance):
    """n/2 log|S| of the frames [T, D] of a cluster; S is smoothed by the mean covariance."""
    scatter = len(frames) * np.cov(frames.T, bias=True) + PRIOR_FRAMES * mean_covariance
    covariance = scatter / (len(frames) + PRIOR_FRAMES)
    return 0.5 * len(frames) * np.linalg.slogdet(covariance)[1]


@settings(max_examples=40)
@given(
    st.integers(0, 10_000),
    st.integers(60, 400),
    st.integers(60, 400),
    st.integers(2, 8),
    st.floats(0, 1.5),
)
def test_two_recordings_merge_where_one_gaussian_is_the_better_model(seed, n1, n2, dim, shift):
    rng = np.random.default_rng(seed)
    mixing = rng.standard_normal((dim, dim)) + 3 * np.eye(dim)
    first = rng.standard_normal((n1, dim)) @ mixing
    second = rng.standard_normal((n2, dim)) @ mixing + shift * mixing.sum(axis=0)
    within = (n1 * np.cov(first.T, bias=True) + n2 * np.cov(second.T, bias=True)) / (n1 + n2)
    gain = criterion(np.concatenate([first, second]), within)
    gain -= criterion(first, within) + criterion(second, within)
    parameters = dim + dim * (dim + 1) / 2
    rise = gain - PENALTY / 2 * parameters * np.log(n1 + n2)
    clusters = cluster_recordings([FrameStatistics.of(first), FrameStatistics.of(second)])
    if abs(rise) > 0.1:  # the covariance has a small floor
        assert clusters == ([0, 0] if rise < 0 else [0, 1])


def gaussians(speakers=6, recordings=8, dimension=20, seed=1):
    """Frames of recordings, drawn from their speakers' Gaussians."""
    rng = np.random.default_rng(seed)
    means = 3 * rng.standard_normal((speakers, dimension))
    return [
        (speaker, means[speaker] + rng.standard_normal((rng.integers(150, 600), dimension)))
        for speaker in range(speakers)
        for _ in range(recordings)
    ]


def partition(names, clusters):
    """The groups of names that have the same cluster."""
    groups = {}
    for name, cluster in zip(names, clusters, strict=True):
        groups.setdefault(cluster, set()).add(name)
    return {frozenset(group) for group in groups.values()}


def test_well_separated_speakers_are_found_in_any_order():
    drawn = gaussians()
    statistics = [FrameStatistics.of(frames) for _, frames in drawn]
    expected = partition(range(len(drawn)), [speaker for speaker, _ in drawn])
    assert partition(range(len(drawn)), cluster_recordings(statistics)) == expected
    order = np.random.default_rng(0).permutation(len(drawn))
    shuffled = cluster_recordings([statistics[index] for index in order])
    assert partition(order.tolist(), shuffled) == expected


def test_features_of_many_values_are_clustered_by_their_principal_components():
    drawn = gaussians(speakers=3, dimension=40)
    copies = [np.hstack([frames, frames]) for _, frames in drawn]  # singular covariances
    clusters = cluster_recordings([FrameStatistics.of(frames) for frames in copies])
    expected = partition(range(len(drawn)), [speaker for speaker, _ in drawn])
    assert partition(range(len(drawn)), clusters) == expected


def test_no_recording_and_one_recording():
    assert cluster_recordings([]) == []
    assert cluster_recordings([FrameStatistics.of(np.ones((80, 20)))]) == [0]


@pytest.fixture
def unnamed(tmp_path):
    """Cuts without speakers: two voices with two recordings each, and digital silence."""

    def record(name, voice, seconds=3.0, seed=0):
        noise = np.random.default_rng(seed).standard_normal(round(seconds * RATE))
        if voice is None:
            samples = np.zeros(len(noise))
        else:  # noise with a resonance at a frequency of the voice
            spectrum = np.fft.rfft(noise)
            hertz = np.fft.rfftfreq(len(noise), 1 / RATE)
            samples = np.fft.irfft(spectrum / (1 + ((hertz - voice) / 300) ** 2), len(noise))
            samples /= 4 * np.abs(samples).max()
        path = tmp_path / f"{name}.wav"
        soundfile.write(path, samples, RATE)
        cut = make_cut(name, probe_recording(path, name)[0], "ONE", name)
        flag_missing_speaker(cut, "no utt2spk")
        return cut

    return [
        record("a1", 600, seed=1),
        record("b1", 2500, seed=2),
        record("a2", 600, seed=3),
        record("b2", 2500, seed=4),
        record("quiet", None),
        record("short", 600, seconds=0.3),
    ]


def speakers_by_cut(cuts):
    return {cut.id: speaker_of(cut) for cut in cuts}


EXPECTED = {"a1": "a1", "a2": "a1", "b1": "b1", "b2": "b1", "quiet": "quiet", "short": "short"}


@pytest.mark.parametrize("jobs", [1, 2])
def test_recordings_of_a_voice_get_the_same_speaker(unnamed, jobs):
    assert name_speakers(unnamed[::-1], jobs) == (6, 4)
    assert speakers_by_cut(unnamed) == EXPECTED
    assert "clustering" in unnamed[0].custom[NO_SPEAKER]


def test_named_faulty_and_unreadable_recordings_stay_as_they_are(unnamed, tmp_path):
    a2, b2 = unnamed[2:4]
    del a2.custom[NO_SPEAKER]
    b2.custom |= {"fault": "bad-segment", "fault_detail": ""}
    (tmp_path / "b1.wav").write_bytes(b"no audio")
    assert name_speakers(unnamed[:4]) == (2, 2)
    assert speakers_by_cut(unnamed[:4]) == {id: id for id in ("a1", "b1", "a2", "b2")}


def test_pieces_of_a_recording_have_the_same_speaker(unnamed):
    a1 = unnamed[0]
    pieces = [
        make_cut(f"a1-{start:g}", a1.recording, "ONE", "", start, start + 1) for start in (0.0, 1.5)
    ]
    for piece in pieces:
        flag_missing_speaker(piece, "no utt2spk")
    assert name_speakers([*pieces, *unnamed[1:4]]) == (4, 2)
    assert {speaker_of(piece) for piece in pieces} == {speaker_of(unnamed[2])}


def test_too_many_recordings_are_an_error_with_advice(unnamed, monkeypatch):
    monkeypatch.setattr(module, "MAX_RECORDINGS", 5)
    with pytest.raises(SpeakerClusteringError, match=r"6 recordings .* `corpus.speakers=recording"):
        name_speakers(unnamed)
