import json
import pickle

import pytest
import torch

from tests.ssl.target_store import TargetStore
from toolkit.features.shards import TarWriter
from toolkit.ssl.targets import TargetError, k_best


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "shards").mkdir()
    for index in range(2):
        with open(tmp_path / "shards" / f"targets.{index:06d}.tar", "wb") as file:
            tar = TarWriter(file)
            for number in range(3):
                torch.manual_seed(10 * index + number)
                best = k_best(torch.randn(4 + number, 9), 3)
                tar.add_array(f"u{index}.{number}/x", best.pack(), {})
            tar.close()
    (tmp_path / "targets.json").write_text(json.dumps({"senones": 9, "offset": 1}))
    return tmp_path


def test_stored_targets_are_read_back(folder):
    store = pickle.loads(pickle.dumps(TargetStore(folder)))
    assert store.ids == [f"u{i}.{n}/x" for i in range(2) for n in range(3)]
    assert (store.num_senones, store.offset) == (9, 1)
    for name, best in store.iter():
        index, number = int(name[1]), int(name[3])
        torch.manual_seed(10 * index + number)
        expected = k_best(torch.randn(4 + number, 9), 3)
        assert best.pack().tobytes() == expected.pack().tobytes()
    assert "u1.2/x" in store
    assert "u2.0/x" not in store


def test_errors_name_the_utterance_or_the_folder(folder, tmp_path):
    with pytest.raises(TargetError, match="u9"):
        TargetStore(folder).load("u9")
    (folder / "targets.json").unlink()
    with pytest.raises(TargetError, match="not a folder of targets"):
        TargetStore(folder)
