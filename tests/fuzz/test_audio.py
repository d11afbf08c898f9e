"""Recordings, and folders of noises and room impulse responses."""

import numpy as np
import pytest
import soundfile

from tests.fuzz.hostile import *  # noqa: F403
from tests.fuzz.trial import Reader, reads_or_explains
from toolkit.corpus.check import decode
from toolkit.corpus.manifest import make_cut, probe_recording
from toolkit.features.audio import AudioError, decode_audio, load_audio
from toolkit.features.augment import augmented
from toolkit.features.config import AugmentConfig
from toolkit.features.cut_audio import load_cut_audio

W64_DATA = bytes.fromhex("64617461f3acd3118cd100c04f8edb8a")
SAMPLES = (np.random.default_rng(0).standard_normal((800, 2)) * 3000).astype(np.int16)


def sound(name, **settings):
    samples = SAMPLES / 32768  # soundfile writes integers to float files as they are
    return lambda folder: soundfile.write(str(folder / name), samples, 8000, **settings)


def use(name):
    def read(folder):
        path = folder / name
        info = decode(str(path))
        content = path.read_bytes() if path.is_file() else b""
        reads_or_explains(lambda: decode_audio(content, name), (name,))
        recording, fault = probe_recording(path, "u")
        recording.to_dict()
        if info.error is None and fault is None and info.decoded == info.declared:
            assert recording.num_samples == info.decoded, "readers differ in the length"
        load_audio(path, 16000, channel=info.channels - 1 if info.channels else None)
        if info.sampling_rate and info.decoded > 200:
            span = 50 / info.sampling_rate, 100 / info.sampling_rate
            samples = load_audio(path, info.sampling_rate, *span)
            whole = load_audio(path, info.sampling_rate)
            assert samples.equal(whole[50:150]), "a piece is no slice of the whole"

    return read


def folders(folder):
    for name in ("speech", "noise", "room"):
        (folder / name).mkdir()
        soundfile.write(str(folder / name / f"{name}.wav"), SAMPLES[:, :1], 16000)


def use_folders(folder):
    path = folder / "speech" / "speech.wav"
    recording, fault = probe_recording(path, "u")
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
    """A file as a program writes it to a pipe, with its size at byte `place` unknown."""

    def write(folder):
        sound(name, **settings)(folder)
        content = bytearray((folder / name).read_bytes())
        begin = place if isinstance(place, int) else content.index(place) + len(place)
        content[begin : begin + len(size)] = size
        (folder / name).write_bytes(content)

    return write


def wav(*chunks):
    """A WAV file of chunks (name, content)."""
    content = b"".join(
        name + len(data).to_bytes(4, "little") + data + b"\0" * (len(data) % 2)
        for name, data in chunks
    )
    return b"RIFF" + (4 + len(content)).to_bytes(4, "little") + b"WAVE" + content


def many_chunks(folder):
    layout = (1).to_bytes(2, "little") + (2).to_bytes(2, "little")
    layout += (8000).to_bytes(4, "little") + (32000).to_bytes(4, "little") + b"\4\0\x10\0"
    data, form = SAMPLES.tobytes(), (b"fmt ", layout)
    first = wav((b"LIST", b"INFO"), form, (b"data", data[:1000]), (b"data", data[1000:]))
    (folder / "a.wav").write_bytes(first + wav(form, (b"LIST", b"x"), (b"data", data)))


def mp3_in_wav(folder):
    mp3(folder)
    content = (folder / "a.mp3").read_bytes()
    (folder / "a.mp3").unlink()
    layout = b"\x55\0\2\0" + (8000).to_bytes(4, "little") + (2000).to_bytes(4, "little")
    layout += b"\1\0\0\0\x0c\0" + bytes(12)
    (folder / "a.wav").write_bytes(wav((b"fmt ", layout), (b"data", content)))


def shortened(folder):
    sound("a.sph", format="NIST")(folder)
    content = (folder / "a.sph").read_bytes()
    coding = b"sample_coding -s26 pcm,embedded-shorten-v2.00\n"
    header = content[:1024].replace(b"end_head", coding + b"end_head")[:1024]
    (folder / "a.sph").write_bytes(header + content[1024:])


def read_shortened(folder):
    reads_or_explains(lambda: use("a.sph")(folder), ("a.sph",))


READERS = {
    "wav-chunks": Reader(many_chunks, use("a.wav")),
    "wav-mp3": Reader(mp3_in_wav, use("a.wav")),
    "wav-gsm": Reader(
        lambda f: soundfile.write(str(f / "a.wav"), SAMPLES[:, 0], 8000, subtype="GSM610"),
        use("a.wav"),
    ),
    "wav-adpcm": Reader(sound("a.wav", subtype="IMA_ADPCM"), use("a.wav")),
    "rf64": Reader(sound("a.rf64", format="RF64"), use("a.rf64")),
    "w64": Reader(sound("a.w64", format="W64"), use("a.w64")),
    "aiff": Reader(sound("a.aiff", format="AIFF"), use("a.aiff")),
    "aifc": Reader(sound("a.aifc", format="AIFF", subtype="ULAW"), use("a.aifc")),
    "aifc-gsm": Reader(
        lambda f: soundfile.write(
            str(f / "a.aifc"), SAMPLES[:, 0], 8000, format="AIFF", subtype="GSM610"
        ),
        use("a.aifc"),
    ),
    "caf": Reader(sound("a.caf", format="CAF"), use("a.caf")),
    "caf-alac": Reader(sound("a.caf", format="CAF", subtype="ALAC_16"), use("a.caf")),
    "au": Reader(sound("a.au"), use("a.au")),
    "voc": Reader(sound("a.voc", format="VOC"), use("a.voc")),
    "opus": Reader(sound("a.opus", format="OGG", subtype="OPUS"), use("a.opus")),
    "mp3": Reader(sound("a.mp3", format="MP3"), use("a.mp3")),
    "shortened": Reader(shortened, read_shortened),
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
    "noise-and-rooms": Reader(folders, use_folders, names=("u_aug:", "contains no audio")),
}


SHORT = {
    *("mp3-pieces", "wav-stream", "w64-stream", "au-stream", "caf-stream", "wav", "flac", "ogg"),
    *("sphere", "float-wav", "noise-and-rooms", "wav-mp3", "aifc-gsm"),
}


@pytest.mark.parametrize("rate", [0, 1, 2_147_483_647])
def test_rates_that_would_make_the_filter_huge(rate, tmp_path):
    soundfile.write(str(tmp_path / "a.wav"), SAMPLES, 16000)
    content = bytearray((tmp_path / "a.wav").read_bytes())
    content[24:28] = rate.to_bytes(4, "little")
    with pytest.raises(AudioError, match=r"a\.wav"):
        decode_audio(bytes(content), "a.wav")
