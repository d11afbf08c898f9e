"""M4A, WebM and other media that FFmpeg decodes."""

from importlib.util import find_spec

import pytest

from tests.fuzz.hostile import *  # noqa: F403
from tests.fuzz.test_audio import use
from tests.fuzz.trial import Reader, reads_or_explains
from tests.media import amr_file, encode_film, encode_media


def media(name, codec, container, rate=8000, **options):
    return Reader(
        lambda folder: encode_media(folder / name, codec, container, rate, seconds=0.3, **options),
        use(name),
    )


READERS = (
    {
        "m4a": media("a.m4a", "aac", "ipod"),
        "alac": media("a.m4a", "alac", "ipod", channels=2),
        "adts": media("a.aac", "aac", "adts"),
        "webm": media("a.webm", "libopus", "webm"),
        "matroska": media("a.mka", "flac", "matroska"),
        "two-streams": Reader(
            lambda folder: encode_media(folder / "a.mka", "flac", seconds=0.3, streams=2),
            lambda folder: reads_or_explains(lambda: use("a.mka")(folder), ("a.mka",)),
        ),
        "mov": media("a.mov", "pcm_s24le", "mov"),
        "avi": media("a.avi", "libmp3lame", "avi"),
        "wavpack": media("a.wv", "wavpack", "wv"),
        "amr": Reader(lambda folder: amr_file(folder / "a.amr", 20), use("a.amr")),
        "film": Reader(lambda folder: encode_film(folder / "a.mp4"), use("a.mp4")),
        "wav": media("a.wav", "g722", "wav", rate=16000),
        "caf": media("a.caf", "adpcm_ima_qt", "caf"),
        "ogg": media("a.ogg", "flac", "ogg"),
    }
    if find_spec("av")
    else {}
)
SHORT = READERS.keys() & {"m4a", "webm", "wav"}
if not READERS:
    pytestmark = pytest.mark.skip("PyAV is not installed")
