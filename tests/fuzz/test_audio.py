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

W64_DATA = bytes.fromhex("64617461f3acd3118cd100c04f8edb8a")
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


def mp3(folder):
    samples = np.tile(SAMPLES / 32768, (20, 1))
    soundfile.write(str(folder / "a.mp3"), samples, 8000, format="MP3", bitrate_mode="VARIABLE")
    content = (folder / "a.mp3").read_bytes()
    (folder / "a.mp3").write_bytes(content[len(content) // 8 :] + content)


def use_pieces(folder):
    path = folder / "a.mp3"
    decode(str(path))
    load_audio(path, 8000, 0.5, 0.2)


def stream(name, place, size, **settings):
    """A file as a program writes it to a pipe; its size in bytes from `place` on is not known."""

    def write(folder):
        sound(name, **settings)(folder)
        content = bytearray((folder / name).read_bytes())
        begin = place if isinstance(place, int) else content.index(place) + len(place)
        content[begin : begin + len(size)] = size
        (folder / name).write_bytes(content)

    return write


READERS = {
    "mp3-pieces": Reader(mp3, use_pieces),
    "wav-stream": Reader(stream("a.wav", b"data", bytes(4)), use("a.wav")),
    "rf64-stream": Reader(stream("a.wav", 20, bytes(24), format="RF64"), use("a.wav")),
    "w64-stream": Reader(stream("a.w64", W64_DATA, b"\xff" * 8), use("a.w64")),
    "au-stream": Reader(stream("a.au", 8, bytes(4)), use("a.au")),
    "caf-stream": Reader(stream("a.caf", b"data", b"\xff" * 8), use("a.caf")),
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
