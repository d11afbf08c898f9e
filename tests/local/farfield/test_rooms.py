from typing import get_args

import numpy as np
import pytest

from local.farfield.config import FarfieldConfig, Spot
from local.farfield.rooms import LEAD, Room, circle, compute_room, device_position, wall_absorption

CONFIG = FarfieldConfig(room_metres=((3.0, 3.0, 2.4), (4.0, 4.0, 2.6)), talkers=2)


def rng(seed=1):
    return np.random.default_rng(seed)


@pytest.fixture(scope="module")
def room():
    pytest.importorskip("pyroomacoustics")
    return compute_room(CONFIG.dp1, CONFIG, "circle-4", rng())


def test_speech_arrives_at_the_first_microphone_without_delay(room):
    for responses in room.talkers:
        direct = np.abs(responses[0]).argmax()
        assert LEAD <= direct <= LEAD + 1
        peaks = np.abs(responses[:, : LEAD + 12]).argmax(axis=1)
        # 7 cm are at most 3.8 samples; two opposite pairs of a circle's microphones.
        assert np.abs(peaks - direct).max() <= 4
        assert len(set(peaks)) > 1


def test_the_loudspeaker_is_close_to_all_microphones(room):
    first = np.abs(room.echo).argmax(axis=1)
    assert np.all((first >= LEAD + 3) & (first <= LEAD + 6))  # 8 to 9 cm
    assert np.ptp(np.abs(room.echo).max(axis=1)) < 0.15


def test_the_reverberation_decays_at_about_the_requested_rate(room):
    energy = np.cumsum(np.square(room.talkers[0, 0], dtype=np.float64)[::-1])[::-1] + 1e-12
    decay = 10 * np.log10(energy / energy[0])
    early, late = (np.flatnonzero(decay < level)[0] for level in (-5, -20))
    t60 = 4 * (late - early) / 16000
    assert 0.6 * room.t60 < t60 < 1.6 * room.t60
    assert CONFIG.dp1.t60_seconds[0] <= room.t60 <= CONFIG.dp1.t60_seconds[1]


def test_rooms_are_reproducible_and_survive_saving(room, tmp_path):
    repeated = compute_room(CONFIG.dp1, CONFIG, "circle-4", rng())
    room.save(tmp_path / "room.npz")
    repeated.save(tmp_path / "again.npz")
    assert (tmp_path / "room.npz").read_bytes() == (tmp_path / "again.npz").read_bytes()
    loaded = Room.load(tmp_path / "room.npz")
    for name in ("talkers", "noise", "echo", "metres", "positions"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(room, name))
    assert loaded.t60 == room.t60
    other_seed = compute_room(CONFIG.dp1, CONFIG, "circle-4", rng(2))
    assert other_seed.talkers.shape != room.talkers.shape or np.any(
        other_seed.talkers != room.talkers
    )


def test_harder_placements_are_less_clear():
    pytest.importorskip("pyroomacoustics")

    def clarity(placement):
        talkers = compute_room(placement, CONFIG, "circle-1", rng()).talkers[:, 0]
        energy = np.square(talkers, dtype=np.float64)
        early = energy[:, : LEAD + 160].sum()
        return 10 * np.log10(early / energy[:, LEAD + 160 :].sum())

    assert clarity(CONFIG.dp1) > clarity(CONFIG.dp3) + 2
    assert clarity(CONFIG.dp1) > clarity(CONFIG.dp5) + 4


@pytest.mark.parametrize("spot", get_args(Spot))
def test_devices_stand_in_the_room_at_their_spot(spot):
    size = np.array([5.0, 4.0, 2.5])
    for seed in range(20):
        place = device_position(spot, size, rng(seed))
        assert np.all(place > 0.2)
        assert np.all(place < size - 0.2)
        walls = np.minimum(place[:2], size[:2] - place[:2])
        assert sum(walls < 0.35) == {"wall": 1, "shelf": 1, "corner": 2}.get(spot, 0)
        assert (place[2] > 1.2) == (spot == "shelf")


@pytest.mark.parametrize("geometry", ["circle-4", "circle-6", "circle-7"])
def test_microphones_stand_on_a_circle(geometry):
    places = circle(geometry, 0.035)
    distances = np.linalg.norm(places, axis=1)
    expected = [0.035] * 6 + [0.0] if geometry == "circle-7" else [0.035] * len(places)
    np.testing.assert_allclose(distances, expected)
    assert len(np.unique(places.round(6), axis=0)) == int(geometry[-1])


def test_absorption_is_sabines():
    # A cube of 4 m: volume 64, surface 96.
    assert wall_absorption(np.full(3, 4.0), 0.4) == pytest.approx(0.161 * 64 / (96 * 0.4))
    assert wall_absorption(np.full(3, 4.0), 0.01) == 0.95
