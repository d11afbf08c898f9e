"""Features of blocks and pieces equal those of the whole."""

import pytest
import torch

from toolkit.features.audio import AudioError, load_audio
from toolkit.features.config import FrontendConfig
from toolkit.features.frontend import Frontend, FrontendError
from toolkit.features.stream import StreamingFrontend, extract_file


@pytest.fixture
def frontend(engine):
    return Frontend(FrontendConfig("mfcc"), engine)


@pytest.mark.parametrize("rate", [8000, 16000, 22050, 44100])
@pytest.mark.parametrize("seconds", [0.5, 3.0, 4.003, 6.999, 9.37])
def test_blocks_give_the_features_of_the_whole(
    audio, frontend, tmp_path, monkeypatch, rate, seconds
):
    monkeypatch.setattr("toolkit.features.stream.BLOCK", 2)
    path = audio(tmp_path / "a.wav", seconds, rate, channels=2)
    whole = frontend(load_audio(path))
    features = extract_file(path, frontend)
    assert features.shape == whole.shape
    assert torch.allclose(features, whole, atol=1e-3)


def test_errors_equal_those_of_reading_the_whole(audio, frontend, tmp_path):
    with pytest.raises(AudioError, match=r"none\.wav"):
        extract_file(tmp_path / "none.wav", frontend)
    (tmp_path / "text.wav").write_text("no audio")
    with pytest.raises(AudioError, match=r"text\.wav"):
        extract_file(tmp_path / "text.wav", frontend)
    with pytest.raises(FrontendError, match="fewer than one window"):
        extract_file(audio(tmp_path / "short.wav", 0.01), frontend)


def test_faulty_files_are_an_error_with_their_name(audio, frontend, tmp_path):
    (tmp_path / "empty.wav").write_bytes(b"")
    (tmp_path / "film.m4a").write_bytes(b"\0\0\0\x14ftypM4A ")
    (tmp_path / "folder.wav").mkdir()
    (tmp_path / "link.wav").symlink_to("nowhere")
    (tmp_path / "samples.raw").write_bytes(bytes(1000))
    for name, message in (
        ("empty.wav", "is an empty file"),
        ("film.m4a", "truncated"),
        ("folder.wav", "is a folder"),
        ("link.wav", "a link to nowhere, which does not exist"),
        ("samples.raw", "raw samples without a header"),
        ("none.wav", "no such audio file"),
        (f"{'x' * 5000}.wav", "the audio file cannot be opened \\(File name too long"),
    ):
        with pytest.raises(AudioError, match=message):
            extract_file(tmp_path / name, frontend)


def test_a_truncated_file_is_a_warning(audio, frontend, tmp_path, caplog):
    path = audio(tmp_path / "a.wav", 2.0)
    extract_file(path, frontend)
    assert not caplog.messages
    path.write_bytes(path.read_bytes()[: 44 + 2 * 8000])
    assert len(extract_file(path, frontend)) == 50
    assert caplog.messages == [
        f"{path}: truncated: its last 1.50 s are missing; fetch the file again"
    ]


CONFIGS = [
    FrontendConfig(num_mel_bins=40),
    FrontendConfig("fbank_mfcc", frame_length_ms=32.0),
    FrontendConfig(num_mel_bins=10, frame_length_ms=10.0),
    FrontendConfig(num_mel_bins=10, sampling_rate=8000),
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("piece", [1, 37, 160, 2560, 16000])
def test_pieces_give_the_features_of_the_whole(config, piece, engine):
    frontend = Frontend(config, engine)
    generator = torch.Generator().manual_seed(piece)
    for length in (400, 512, 5 * 160 + 79, 5 * 160 + 81, *([16001] if piece > 1 else [])):
        if length < config.frame_length_ms * config.sampling_rate / 1000:
            continue
        samples = torch.randn(length, generator=generator) / 10
        stream, pieces, num_frames = StreamingFrontend(frontend), [], 0
        for begin in range(0, length, piece):
            pieces.append(stream.push(samples[begin : begin + piece]))
            num_frames += len(pieces[-1])
            assert stream.seconds == min(begin + piece, length) / config.sampling_rate
            # A frame comes as soon as its window is there.
            window, step = (config.sampling_rate * x // 1000 for x in _milliseconds(config))
            complete = (min(begin + piece, length) - step // 2 - window // 2) // step + 1
            assert num_frames == max(0, complete) or begin + piece < window
        pieces.append(stream.finish())
        whole = frontend(samples)
        assert torch.cat(pieces).shape == whole.shape
        # Sums of other numbers of frames at once differ in their last bits, by processor.
        # Log energies of up to 26 were never more than 1.9e-6 apart, one unit in the last place. A
        # cepstrum adds up 80 of them with cosines and multiplies by a lifter of up to 12: 5.0e-5.
        rounding = 4 * torch.finfo(torch.float32).eps * float(whole.abs().max())
        if config.kind == "fbank_mfcc":
            rounding = 1e-4
        assert torch.allclose(torch.cat(pieces), whole, rtol=0.0, atol=rounding)


def _milliseconds(config):
    return int(config.frame_length_ms), int(config.frame_shift_ms)


def test_a_stream_shorter_than_a_window_has_no_features(frontend):
    stream = StreamingFrontend(frontend)
    assert stream.push(torch.zeros(399)).shape == (0, 13)
    with pytest.raises(FrontendError, match="fewer than one window"):
        stream.finish()
