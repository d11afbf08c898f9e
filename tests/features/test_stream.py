"""Features block by block against those of the whole file."""

import pytest
import torch

pytest.importorskip("kaldifeat")

from toolkit.features.audio import AudioError, load_audio
from toolkit.features.frontend import Frontend, FrontendConfig, FrontendError
from toolkit.features.stream import features_of_file


@pytest.fixture(scope="module")
def frontend():
    return Frontend(FrontendConfig("mfcc"))


@pytest.mark.parametrize("rate", [8000, 16000, 22050, 44100])
@pytest.mark.parametrize("seconds", [0.5, 3.0, 4.003, 6.999, 9.37])
def test_blocks_give_the_features_of_the_whole(
    audio, frontend, tmp_path, monkeypatch, rate, seconds
):
    monkeypatch.setattr("toolkit.features.stream.BLOCK", 2)
    path = audio(tmp_path / "a.wav", seconds, rate, channels=2)
    whole = frontend(load_audio(path))
    found = features_of_file(path, frontend)
    assert found.shape == whole.shape
    assert torch.allclose(found, whole, atol=1e-3)


def test_faults_are_those_of_reading_the_whole(audio, frontend, tmp_path):
    with pytest.raises(AudioError, match=r"none\.wav"):
        features_of_file(tmp_path / "none.wav", frontend)
    (tmp_path / "text.wav").write_text("no audio")
    with pytest.raises(AudioError, match=r"text\.wav"):
        features_of_file(tmp_path / "text.wav", frontend)
    with pytest.raises(FrontendError, match="fewer than one window"):
        features_of_file(audio(tmp_path / "short.wav", 0.01), frontend)
