"""The audio formats that transcribe.md promises are those that are read."""

import re
from pathlib import Path

import numpy as np
import pytest
import soundfile

from toolkit.corpus.media import MEDIA_SUFFIXES
from toolkit.decode.sources import Inputs

ROOT = Path(__file__).resolve().parents[2]
PAGE = " ".join((ROOT / "docs/transcribe.md").read_text(encoding="utf-8").split())
READ = {
    "WAV": ("a.wav", "WAV", None),
    "FLAC": ("a.flac", "FLAC", None),
    "MP3": ("a.mp3", "MP3", None),
    "Vorbis": ("a.ogg", "OGG", "VORBIS"),
    "Opus": ("a.opus", "OGG", "OPUS"),
    "AIFF": ("a.aiff", "AIFF", None),
    "SPHERE": ("a.sph", "NIST", None),
}


@pytest.mark.parametrize("name", READ)
def test_a_format_that_the_page_promises_is_found_in_a_folder_and_read(tmp_path, name):
    file, container, subtype = READ[name]
    match = re.search(r"WAV, [^.]* are read;", PAGE)
    assert match
    assert name in match[0]
    tone = 0.1 * np.sin(np.arange(16000) / 10)
    soundfile.write(tmp_path / file, tone, 16000, format=container, subtype=subtype)
    (source,) = Inputs().sources([str(tmp_path)], None, tmp_path)
    blocks = list(source.blocks(16000, 0.1))
    assert abs(sum(map(len, blocks)) - 16000) <= 2000  # codecs pad


def test_the_formats_of_the_extra_are_those_that_are_found_in_folders():
    match = re.search(r"also ([A-Za-z0-9, ]+) and WavPack", PAGE)
    assert match
    suffixes = {f".{name.lower()}" for name in match[1].split(", ")}
    assert len(suffixes) == 10
    assert suffixes < MEDIA_SUFFIXES
