import itertools

import numpy as np
import pytest
import soundfile

from local.farfield.config import FarfieldConfig
from local.farfield.rooms import (
    LEAD,
    FarfieldError,
    clarity,
    noise_files_by_pool,
    response_files_by_pool,
    room_from_file,
)

RATE = 16000


def write(path, seconds, decay, channels=1, delay=50):
    rng = np.random.default_rng(1)
    length = int(seconds * RATE)
    response = 0.02 * rng.standard_normal((length, channels))
    response *= np.exp(-np.arange(length) / (decay * RATE))[:, None]
    response[:delay] = 0.0
    response[delay] = 0.9
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, response, RATE)


def test_the_first_placement_has_the_clearest_responses(tmp_path, caplog):
    for number in range(20):
        write(tmp_path / f"{(7 * number) % 20:02d}.wav", 0.6, 0.01 * (1 + (7 * number) % 20))
    assigned = response_files_by_pool(FarfieldConfig(responses=tmp_path))
    names = {key: [int(path.stem) for path in paths] for key, paths in assigned.items()}
    for number in range(5):
        numbers = [names[pool, f"DP{number + 1}"] for pool in ("train", "val", "test")]
        assert sorted(itertools.chain(*numbers)) == list(range(4 * number, 4 * number + 4))
        assert [len(files) for files in numbers] == [2, 1, 1]
    assert "may share rooms" in caplog.text


def test_a_room_with_a_folder_is_in_one_pool(tmp_path, caplog):
    for number in range(40):
        write(tmp_path / f"room{number % 20}" / f"{number:02d}.wav", 0.3, 0.01 * (1 + number))
    assigned = response_files_by_pool(FarfieldConfig(responses=tmp_path))
    rooms = {pool: set() for pool in ("train", "val", "test")}
    for (pool, _), paths in assigned.items():
        rooms[pool] |= {path.parent.name for path in paths}
    assert {pool: len(folders) for pool, folders in rooms.items()} == {
        "train": 10,
        "val": 5,
        "test": 5,
    }
    assert len(set.union(*rooms.values())) == 20
    for pool in rooms:
        numbers = [sorted(int(path.stem) for path in assigned[pool, f"DP{n}"]) for n in range(1, 6)]
        assert list(itertools.chain(*numbers)) == sorted(itertools.chain(*numbers))
        assert all(numbers)
    assert not caplog.text


def test_a_few_rooms_are_shared_by_all_pools(tmp_path, caplog):
    for number in range(40):
        write(tmp_path / f"room{number % 7}" / f"{number:02d}.wav", 0.3, 0.01 * (1 + number))
    rooms = {"train": set(), "val": set(), "test": set()}
    for (pool, _), paths in response_files_by_pool(FarfieldConfig(responses=tmp_path)).items():
        rooms[pool] |= {path.parent.name for path in paths}
    assert {pool: len(folders) for pool, folders in rooms.items()} == {
        "train": 7,
        "val": 7,
        "test": 7,
    }
    assert "may share rooms" in caplog.text


def test_clarity_compares_the_first_50_ms_with_the_rest():
    response = np.zeros(RATE)
    response[100], response[100 + 900] = 1.0, 0.1  # 56 ms later
    assert clarity(response) == pytest.approx(20.0)


def test_every_noise_is_in_one_pool(tmp_path):
    for number in range(9):
        write(tmp_path / f"{number}.flac", 0.1, 0.1)
    files = noise_files_by_pool(tmp_path)
    assert {pool: len(paths) for pool, paths in files.items()} == {
        "train": 5,
        "test": 2,
        "val": 2,
    }
    assert len({path for paths in files.values() for path in paths}) == 9


@pytest.mark.parametrize("delay", [5, 50, 500])
def test_channels_of_a_file_are_microphones(tmp_path, delay):
    write(tmp_path / "a.wav", 0.5, 0.05, channels=3, delay=delay)
    room = room_from_file(tmp_path / "a.wav")
    assert room.talkers.shape[:2] == (1, 3)
    assert np.abs(room.talkers[0]).argmax(axis=1).tolist() == [LEAD] * 3
    assert room.noise.shape == room.echo.shape == room.talkers.shape[1:]
    assert np.abs(room.echo).argmax(axis=1).tolist() == [LEAD] * 3
    direct = room.noise[:, : LEAD + 40]
    assert not direct.any()
    assert room.noise.any()


def test_too_few_files_are_an_error(tmp_path):
    for number in range(4):
        write(tmp_path / f"{number}.wav", 0.1, 0.1)
    with pytest.raises(FarfieldError, match="4 impulse responses; 5 placements need at least 20"):
        response_files_by_pool(FarfieldConfig(responses=tmp_path))
    (tmp_path / "0.wav").unlink()
    with pytest.raises(FarfieldError, match="contains 3 audio files"):
        noise_files_by_pool(tmp_path)


def test_a_file_that_is_not_an_impulse_response_is_an_error(tmp_path):
    for number in range(20):
        write(tmp_path / f"{number:02d}.wav", 0.1, 0.01)
    (tmp_path / "._00.wav").write_bytes(b"\0\5\x16\7Mac OS X")  # what a copy from a Mac leaves
    (tmp_path / "room.wav").mkdir()
    config = FarfieldConfig(responses=tmp_path)
    assert sum(map(len, response_files_by_pool(config).values())) == 20
    for samples, reason in ((np.zeros(RATE), "silent"), (np.zeros(0), "no samples")):
        soundfile.write(tmp_path / "x.wav", samples, RATE)
        with pytest.raises(FarfieldError, match=rf"x.wav is not an impulse response .*{reason}"):
            response_files_by_pool(config)
    (tmp_path / "x.wav").write_text("text")
    with pytest.raises(FarfieldError, match=r"x.wav is not an impulse response .*: remove it"):
        response_files_by_pool(config)
