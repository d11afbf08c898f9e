"""Recordings, and folders of noises and room impulse responses."""

import numpy as np
import pytest
import soundfile

from tests.fuzz.hostile import *  # noqa: F403
from tests.fuzz.trial import Reader, reads_or_explains
from toolkit.corpus.check.audio_info import decode
from toolkit.corpus.manifest import make_cut, recording_or_fault
from toolkit.features.audio import AudioError, decode_audio, load_audio
from toolkit.features.augment import AugmentConfig, augmented
from toolkit.features.cut_audio import load_cut_audio

SAMPLES = (np.random.default_rng(0).standard_normal((800, 2)) * 3000).astype(np.int16)


def sound(name, **settings):
    samples = SAMPLES / 32768  # soundfile writes integers to float files as they are
    return lambda folder: soundfile.write(str(folder / name), samples, 8000, **settings)


def use(name):
    def read(folder):
        path = folder / name
        decode(str(path))
        content = path.read_bytes() if path.is_file() else b""
        reads_or_explains(lambda: decode_audio(content, name), (name,))
        recording_or_fault(path, "u")[0].to_dict()
        load_audio(path, 16000, channel=1)

    return read


def folders(folder):
    for name in ("speech", "noise", "room"):
        (folder / name).mkdir()
        soundfile.write(str(folder / name / f"{name}.wav"), SAMPLES[:, :1], 16000)


def use_folders(folder):
    path = folder / "speech" / "speech.wav"
    recording, fault = recording_or_fault(path, "u")
    if fault is not None:
        return fault
    cut = make_cut("u", recording, "GOOD", "anna")
    noise, rooms = folder / "noise", folder / "room"
    config = AugmentConfig((1.0,), noise, noise_share=1.0, rooms=rooms, rooms_share=1.0)
    return [load_cut_audio(copy) for copy in augmented([cut], config)]


READERS = {
    "wav": Reader(sound("a.wav"), use("a.wav")),
    "flac": Reader(sound("a.flac"), use("a.flac")),
    "ogg": Reader(sound("a.ogg"), use("a.ogg")),
    "sphere": Reader(sound("a.sph", format="NIST"), use("a.sph")),
    "float-wav": Reader(sound("a.wav", subtype="FLOAT"), use("a.wav")),
    # Lhotse's errors name the utterance.
    "noise-and-rooms": Reader(folders, use_folders, names=("u_aug:", "holds no audio")),
}


@pytest.mark.parametrize("rate", [0, 1, 2_147_483_647])
def test_rates_that_would_make_the_filter_huge(rate, tmp_path):
    soundfile.write(str(tmp_path / "a.wav"), SAMPLES, 16000)
    content = bytearray((tmp_path / "a.wav").read_bytes())
    content[24:28] = rate.to_bytes(4, "little")
    with pytest.raises(AudioError, match=r"a\.wav"):
        decode_audio(bytes(content), "a.wav")
