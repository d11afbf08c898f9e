from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from toolkit.features.audio import AudioError, load_audio
from toolkit.features.cut_audio import load_cut_audio


def test_a_cut_is_its_span_and_channel(make_cut):
    cut = make_cut("long", seconds=2.0, start=0.5, end=1.5, channels=2)
    expected = cut.load_audio()[0]
    np.testing.assert_array_equal(load_cut_audio(cut), expected)
    assert load_cut_audio(cut, 8000).shape == (8000,)


def test_a_cut_that_mixes_its_channels_is_their_mean(make_cut):
    cut = make_cut("long", seconds=1.0, channels=2)
    one = load_cut_audio(cut)
    cut.custom = {**(cut.custom or {}), "mix_channels": True}
    mixed = load_cut_audio(cut)
    torch.testing.assert_close(mixed, load_audio(Path(cut.recording.sources[0].source)))
    assert (mixed - one).abs().max() > 1e-3


def test_a_transformed_cut_goes_through_lhotse(make_cut):
    cut = make_cut("long", seconds=1.0).resample(8000)
    assert load_cut_audio(cut, 16000).shape == (16000,)


def test_a_cut_of_a_changed_file_names_the_file(make_cut):
    cut = make_cut("a", seconds=1.0)
    source = cut.recording.sources[0].source
    soundfile.write(source, np.zeros(8000), 16000)
    with pytest.raises(AudioError, match=r"a\.flac: 1\.000 s asked for"):
        load_cut_audio(cut)


def test_never_runs_a_command(make_cut, tmp_path):
    cut = make_cut("a")
    cut.recording.sources[0].type = "command"
    cut.recording.sources[0].source = f"touch {tmp_path / 'ran'}"
    with pytest.raises(AudioError, match="not run"):
        load_cut_audio(cut)
    assert not (tmp_path / "ran").exists()
