"""Files that are not what their names say, or not whole: every command names them, or reads all."""

import json
import re

import numpy as np
import pytest
import soundfile

from tests.media import encode_media
from toolkit.align.inputs import read_inputs
from toolkit.corpus.check import check
from toolkit.corpus.config import CheckConfig
from toolkit.corpus.manifest import write_cuts
from toolkit.corpus.table import read_table
from toolkit.decode.sources import Inputs
from toolkit.errors import ToolkitError
from toolkit.features.config import FrontendConfig
from toolkit.features.frontend import Frontend
from toolkit.features.stream import extract_file
from toolkit.new_corpus.survey import find_faults

SECONDS = 2.0
FORMATS = {
    "wav": ("WAV", "PCM_16"),
    "flac": ("FLAC", "PCM_16"),
    "mp3": ("MP3", "MPEG_LAYER_III"),
    "ogg": ("OGG", "VORBIS"),
    "opus": ("OGG", "OPUS"),
    "aiff": ("AIFF", "PCM_16"),
    "aifc": ("AIFF", "IMA_ADPCM"),
    "au": ("AU", "PCM_16"),
    "caf": ("CAF", "PCM_16"),
    "w64": ("W64", "PCM_16"),
    "rf64": ("RF64", "PCM_16"),
    "sph": ("NIST", "PCM_16"),
}
MEDIA = {
    "m4a": ("aac", "ipod"),
    "aac": ("aac", "adts"),
    "mka": ("flac", "matroska"),
    "webm": ("libopus", "webm"),
    "avi": ("pcm_s16le", "avi"),
    "wv": ("wavpack", "wv"),
}
TEXT = b"GOOD MORNING to all of you, who are called after audio files.\n" * 40


def audio_bytes(suffix, folder):
    if suffix in FORMATS:
        container, subtype = FORMATS[suffix]
        samples = 0.1 * np.random.default_rng(0).standard_normal(round(16000 * SECONDS))
        soundfile.write(folder / "made", samples, 16000, format=container, subtype=subtype)
    else:
        rate = 48000 if suffix == "webm" else 16000
        encode_media(folder / "made", *MEDIA[suffix], rate=rate, seconds=SECONDS)
    content = (folder / "made").read_bytes()
    (folder / "made").unlink()
    return content


def available():
    try:
        import av  # noqa: F401
    except ImportError:
        return {*FORMATS}
    return {*FORMATS, *MEDIA}


NOT_AUDIO = r"[Ff]ormat not recognised|no MP3 frame in it|not audio, or raw samples"
TRUNCATED = r"truncated|not marked|lost sync|malformed|\d+ of \d+ samples"
TWICE = r"it holds several|it holds (MP3 )?streams|lost sync|internal error|malformed"


def write_hostile(folder):
    """Write the files; return by name the expected message, or None where the file is readable."""
    expected = {}
    for suffix in sorted(available()):
        content = audio_bytes(suffix, folder)
        wrong_suffix = "mp3" if suffix != "mp3" else "wav"
        hostile = {
            f"empty-{suffix}.{suffix}": (b"", "is an empty file"),
            f"text-{suffix}.{suffix}": (TEXT, NOT_AUDIO),
            f"other-{suffix}.{wrong_suffix}": (content, None),
            f"half-{suffix}.{suffix}": (content[: len(content) // 2], TRUNCATED),
            f"twice-{suffix}.{suffix}": (content + content, TWICE),
        }
        for name, (file_bytes, message) in hostile.items():
            (folder / name).write_bytes(file_bytes)
            expected[name] = message
    (folder / "link.wav").symlink_to("nowhere.wav")
    (folder / "good.wav").write_bytes(audio_bytes("wav", folder))
    return {**expected, "link.wav": "link to nowhere.wav", "good.wav": None}


READ_TWICE = {"wav", "mp3", "aac"}
"""Formats whose concatenated files are read as one."""


def seconds_read(name):
    suffix = name.partition(".")[0].partition("-")[2]
    return 2 * SECONDS if name.startswith("twice") and suffix in READ_TWICE else SECONDS


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    expected = write_hostile(folder)
    for name in expected:
        if name.startswith("twice") and name.rpartition(".")[2] in READ_TWICE:
            expected[name] = None
    return folder, expected


def assert_messages(expected, messages, lengths):
    """Compare messages and lengths in seconds with the expected ones, by file name."""
    for name, message in expected.items():
        if message is None:
            assert name not in messages, messages[name]
            assert abs(lengths[name] - seconds_read(name)) < 0.25, name  # codecs pad
        else:
            assert name in messages, f"{name}: no message"
            assert name.partition(".")[0] in messages[name]
            assert re.search(message, messages[name]), messages[name]


def test_new_corpus_and_check_name_unreadable_files(hostile, tmp_path):
    folder, expected = hostile
    (folder / "sub.wav").mkdir(exist_ok=True)
    expected = {**expected, "sub.wav": "is a folder"}
    rows = [f"{name},ONE TWO,anna,{name.replace('.', '_')}" for name in expected]
    table = folder / "table.csv"
    table.write_text("\n".join(["audio,text,speaker,id", *rows]) + "\n")
    cuts = read_table(table)["train"]
    table.unlink()
    by_id = {name.replace(".", "_"): name for name in expected}
    lengths = {by_id[cut.id]: cut.duration for cut in cuts}
    messages = {by_id[cut.id]: text for cut in cuts for text in find_faults([cut]).values()}
    write_cuts(cuts, tmp_path / "train.jsonl")
    lexicon = {"ONE": 3, "TWO": 2}
    limits = CheckConfig(max_excluded=1.0, min_excluded=1000)
    check({"train": tmp_path / "train.jsonl"}, lexicon, tmp_path / "check", limits)
    findings = json.loads((tmp_path / "check" / "report.json").read_text())["findings"]
    messages |= {
        # An open end counts as a truncation.
        by_id[
            finding["id"]
        ]: f"{finding['kind'].replace('open-end', 'truncated')}: {finding['detail']}"
        for finding in findings
        if finding["kind"] in ("truncated-audio", "unreadable-audio", "missing-audio", "open-end")
    }
    assert_messages(expected, messages, lengths)


def test_transcription_names_unreadable_files(hostile, tmp_path, caplog):
    folder, expected = hostile
    messages, lengths = {}, {}
    for name in expected:
        caplog.clear()
        (source,) = Inputs().sources([str(folder / name)], None, tmp_path)
        try:
            lengths[name] = sum(map(len, source.blocks(16000, 0.5))) / 16000
        except ToolkitError as error:
            messages[name] = str(error)
        for message in caplog.messages:
            messages[name] = message
    assert_messages(expected, messages, lengths)


def test_alignment_names_unreadable_files(hostile, tmp_path, caplog):
    folder, expected = hostile
    frontend = Frontend(FrontendConfig(num_mel_bins=4))
    (tmp_path / "text").write_text("".join(f"{name.partition('.')[0]} ONE\n" for name in expected))
    messages, lengths = {}, {}
    for recording in read_inputs(folder, tmp_path / "text"):
        caplog.clear()
        assert not recording.fault
        name = recording.audio.name
        try:
            lengths[name] = len(extract_file(recording.audio, frontend)) / 100
        except ToolkitError as error:
            messages[name] = str(error)
        for message in caplog.messages:
            messages[name] = message
    assert_messages(expected, messages, lengths)
