"""Deltas, splicing and the features of GMM systems."""

import pickle
import shutil
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.optional import load_torchaudio
from toolkit.features import gmm_features
from toolkit.features.gmm_features import (
    GmmFeatures,
    GmmFrontend,
    add_deltas,
    load_transforms,
    save_transforms,
    splice,
)
from toolkit.features.shards import StoreError

SPLICED = 3 * 4 * 5  # four cepstra with deltas, two frames on either side


def projection(rows=6, columns=SPLICED):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(3))


def transforms(dimension, speakers=("anna", "carl")):
    generator = torch.Generator().manual_seed(4)
    return {s: torch.randn(dimension, dimension + 1, generator=generator) for s in speakers}


def frame_by_frame(x, mean, reach, projection, transform):
    """The pipeline in float64, frame by frame."""
    x = add_deltas((x.double() - mean).float()).double().numpy()
    last = len(x) - 1
    rows = [
        np.concatenate([x[min(max(t + k, 0), last)] for k in range(-reach, reach + 1)])
        for t in range(len(x))
    ]
    if projection is not None:
        rows = [projection.double().numpy() @ row for row in rows]
    if transform is not None:
        rows = [transform.double().numpy() @ np.append(row, 1.0) for row in rows]
    return torch.from_numpy(np.stack(rows))


@pytest.mark.parametrize("reach", [0, 2])
@pytest.mark.parametrize("projected", [False, True])
@pytest.mark.parametrize("adapted", [False, True])
def test_features_are_deltas_then_splicing_then_projection_then_transform(
    small_store, reach, projected, adapted
):
    matrix = projection(columns=12 * (2 * reach + 1)) if projected else None
    features = GmmFeatures(small_store.path, GmmFrontend(reach, matrix))
    if adapted:
        features = features.adapted(transforms(features.dimension))
    for utterance, raw in small_store.features.items():
        speaker = utterance.partition(".")[0]
        speaker_frames = torch.cat(
            [x for u, x in small_store.features.items() if u.startswith(speaker)]
        )
        mean = speaker_frames.double().mean(0)
        transform = features.transforms.get(speaker)  # bert has none
        expected = frame_by_frame(raw, mean, reach, matrix, transform)
        loaded = features.load(utterance)
        assert loaded.dtype == torch.float32
        torch.testing.assert_close(loaded.double(), expected, atol=2e-4, rtol=1e-4)
        assert features.dimension == loaded.shape[1]
        assert features.speaker(utterance) == speaker


@contextmanager
def hidden_features(folder):
    """Make the features of a store unreadable within the context."""
    paths = list(folder.rglob("*.tar"))
    for path in paths:
        path.rename(path.with_suffix(".hidden"))
    yield
    for path in paths:
        path.with_suffix(".hidden").rename(path)


def test_cached_features_equal_computed_features(small_store, tmp_path, monkeypatch):
    """With and without room in the cache, for each front end, and after callers change a copy."""
    matrices = projection(), -projection()
    monkeypatch.setattr(gmm_features, "CACHED_BYTES", 0)
    systems = [GmmFeatures(small_store.path, GmmFrontend(2, matrix)) for matrix in matrices]
    systems += [systems[0].adapted(transforms(6)), GmmFeatures(small_store.path)]
    expected = [{u: system.load(u) for u in small_store.features} for system in systems]
    utterance = small_store.store.ids[-1]
    with hidden_features(small_store.path), pytest.raises(StoreError, match="cannot be read"):
        systems[3].load(utterance)
    monkeypatch.undo()
    copy = tmp_path / "copy"  # of which nothing is kept yet
    shutil.copytree(small_store.path, copy)
    systems = [replace(system, path=copy) for system in systems]

    def compare(number):
        system = pickle.loads(pickle.dumps(systems[number]))
        for utterance in small_store.features:
            x = system.load(utterance)
            assert torch.equal(x, expected[number][utterance])
            x.zero_()

    for number in (0, 1):
        compare(number)
    with hidden_features(copy):
        for number in (2, 0, 1, 2):  # the third is a transform of the first
            compare(number)
    assert torch.equal(systems[3].load(utterance), expected[3][utterance])


def test_each_speakers_static_features_are_centred(small_store):
    features = GmmFeatures(small_store.path)
    for speaker in ("anna", "bert", "carl"):
        utterances = [u for u in features.store.ids if u.startswith(speaker)]
        mean = torch.cat([features.load(u) for u in utterances])[:, :4].mean(0)
        torch.testing.assert_close(mean, torch.zeros(4), atol=1e-4, rtol=0)


@pytest.mark.parametrize("matrix", [None, projection()])
def test_the_front_end_round_trips_through_disk_and_pickle(matrix, tmp_path):
    frontend = GmmFrontend(2, matrix)
    frontend.save(tmp_path)
    files = {"features.json"} | ({"projection.safetensors"} if matrix is not None else set())
    assert {path.name for path in tmp_path.iterdir()} == files
    x, mean = torch.randn(9, 4), torch.randn(4).double()
    for restored in (GmmFrontend.load(tmp_path), pickle.loads(pickle.dumps(frontend))):
        assert restored.splice == 2
        assert torch.equal(restored(x, mean), frontend(x, mean))


def test_features_pickle_without_the_store(small_store):
    features = GmmFeatures(small_store.path, GmmFrontend(2, projection()))
    features = features.adapted(transforms(6))
    fresh = pickle.dumps(features)
    utterance = small_store.store.ids[-1]
    expected = features.load(utterance)
    assert pickle.dumps(features) == fresh
    assert torch.equal(pickle.loads(fresh).load(utterance), expected)


def test_replacing_projection_or_transforms_keeps_the_other_settings(small_store):
    features = GmmFeatures(small_store.path, GmmFrontend(2)).adapted(transforms(SPLICED))
    projected = features.projected(projection())
    assert projected.frontend.splice == 2
    assert torch.equal(projected.frontend.projection, projection())
    assert projected.transforms is features.transforms
    assert features.frontend.projection is None
    assert features.adapted({}).frontend is features.frontend


def test_transforms_round_trip_whatever_the_speakers_are_called(tmp_path):
    saved = transforms(3, ("b", "a/1.x", "c d"))
    save_transforms(tmp_path / "w.safetensors", saved)
    loaded = load_transforms(tmp_path / "w.safetensors")
    assert loaded.keys() == saved.keys()
    assert all(torch.equal(loaded[s], saved[s]) for s in saved)
    first = (tmp_path / "w.safetensors").read_bytes()
    save_transforms(tmp_path / "w.safetensors", dict(reversed(saved.items())))
    assert (tmp_path / "w.safetensors").read_bytes() == first
    save_transforms(tmp_path / "none.safetensors", {})
    assert load_transforms(tmp_path / "none.safetensors") == {}


def regression(values, window, length):
    """The regression over an infinite signal x(t) at t = 0 ... length - 1."""
    norm = sum(j * j for j in range(-window, window + 1))

    def at(t):
        return sum(j * values(t + j) for j in range(-window, window + 1)) / norm

    return at, [at(t) for t in range(length)]


@pytest.mark.parametrize("length", [1, 2, 5, 12])
@pytest.mark.parametrize("window", [1, 2, 3])
def test_equals_nested_regressions_of_the_signal_with_repeated_ends(length, window):
    signal = np.random.default_rng(length).normal(size=length)

    def x(t):
        return signal[min(max(t, 0), length - 1)]

    first_at, first = regression(x, window, length)
    _, second = regression(first_at, window, length)
    deltas = add_deltas(torch.from_numpy(signal).unsqueeze(1), order=2, window=window)
    np.testing.assert_allclose(deltas.numpy(), np.stack([signal, first, second], 1), atol=1e-12)


def test_first_order_equals_torchaudio():
    functional = load_torchaudio("functional")
    x = torch.randn(30, 13)
    expected = functional.compute_deltas(x.t(), win_length=5).t()
    torch.testing.assert_close(add_deltas(x, order=1)[:, 13:], expected)


def test_dimensions_are_grouped_by_order_and_a_ramp_has_slope_one():
    x = torch.stack([torch.arange(20.0), torch.full((20,), 7.0)], dim=1)
    deltas = add_deltas(x)
    assert deltas.shape == (20, 6)
    slopes = x.new_tensor([1, 0, 0, 0]).expand(12, -1)  # of both columns, then their slopes
    torch.testing.assert_close(deltas[4:-4], torch.cat([x[4:-4], slopes], 1))


def test_no_frames():
    assert add_deltas(torch.empty(0, 13)).shape == (0, 39)


def test_splicing_concatenates_neighbouring_frames():
    x = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    joined = splice(x, 2, 1)
    assert joined.shape == (7, 12)
    for t in range(7):
        times = [min(max(t + offset, 0), 6) for offset in (-2, -1, 0, 1)]
        assert torch.equal(joined[t], torch.cat([x[time] for time in times]))


def test_no_context_changes_nothing():
    x = torch.arange(6.0).view(3, 2)
    assert torch.equal(splice(x, 0, 0), x)


def test_edge_cases_of_one_and_no_frame():
    assert splice(torch.ones(1, 2), 4, 4).tolist() == [[1.0] * 18]
    assert splice(torch.empty(0, 2), 1, 1).shape == (0, 6)
