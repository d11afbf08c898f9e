from dataclasses import dataclass

from toolkit.train.checkpoints import finish_training, finished_headline, training_identity
from toolkit.train.config import TrainerConfig


@dataclass(frozen=True)
class Config(TrainerConfig):
    sizes: tuple[int, ...] = (1, 2)


def test_a_training_with_the_same_settings_is_finished(tmp_path):
    settings = training_identity(Config(), num_targets=3)
    assert finished_headline(tmp_path, settings) is None
    finish_training(tmp_path, settings, {"loss": 0.1})
    assert finished_headline(tmp_path, training_identity(Config(), num_targets=3)) == {"loss": 0.1}
    assert finished_headline(tmp_path, training_identity(Config(), num_targets=4)) is None
    assert (
        finished_headline(tmp_path, training_identity(Config(sizes=(2, 1)), num_targets=3)) is None
    )


def test_a_finished_training_leaves_no_checkpoints_nor_does_one_killed_while_it_removes_them(
    tmp_path,
):
    identity = training_identity(Config())
    checkpoints = [
        tmp_path / "checkpoints/a.safetensors",
        tmp_path / "whole/checkpoints/b.safetensors",
    ]
    model = tmp_path / "model.safetensors"

    def write():
        for path in (*checkpoints, model):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    write()
    assert finished_headline(tmp_path, identity) is None
    assert all(path.exists() for path in checkpoints)
    assert finish_training(tmp_path, identity, {"loss": 0.1}) == {"loss": 0.1}
    assert not any(path.exists() for path in checkpoints)
    write()
    assert finished_headline(tmp_path, training_identity(Config(epochs=3))) is None
    assert all(path.exists() for path in checkpoints)
    assert finished_headline(tmp_path, identity) == {"loss": 0.1}
    assert not any(path.exists() for path in checkpoints)
    assert model.exists()
