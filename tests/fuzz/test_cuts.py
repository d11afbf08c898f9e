"""Commands in cuts do not run, whichever part of the toolkit reads the cuts or their audio."""

import copy
import io
import json
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.choices import Choices, Drawn
from tests.fuzz.trial import FUZZ, reads_or_explains
from toolkit.corpus.manifest import read_cuts
from toolkit.decode.sources import Inputs
from toolkit.features.config import FrontendConfig
from toolkit.features.cut_audio import load_cut_audio
from toolkit.features.shards import FeatureStore, write_manifest, write_shard
from toolkit.report.media import read_clip

COMMANDS = (
    ("command", "touch ran; cat clean.wav"),
    ("file", "x; touch ran; .sph"),
    ("file", "|touch ran; cat clean.wav"),
    ("file", "pipe:touch ran"),
    ("url", "pipe:touch ran"),
)
SPEAKER = {
    "id": "u",
    "recording_id": "r",
    "start": 0.0,
    "duration": 0.1,
    "speaker": "s",
    "text": "a",
}


def recording(kind="file", source="clean.wav", **fields):
    sources = [{"type": kind, "channels": [0], "source": source}]
    defaults = {"id": "r", "sampling_rate": 16000, "num_samples": 1600, "duration": 0.1}
    return {**defaults, "sources": sources, **fields}


def cut(recording, **fields):
    defaults = {"id": "u", "type": "MonoCut", "start": 0.0, "duration": 0.1, "channel": 0}
    return {**defaults, "supervisions": [SPEAKER], "recording": recording, **fields}


def reverb(response):
    return {"name": "ReverbWithImpulseResponse", "kwargs": {"rir": response, "rir_channels": [0]}}


def mixed(*cuts, **fields):
    tracks = [{"cut": copy.deepcopy(c), "type": c["type"], "offset": 0.0} for c in cuts]
    return {"id": "u", "type": "MixedCut", "tracks": tracks, **fields}


GOOD = cut(recording())
HIDE = {
    "track": lambda c: mixed(GOOD, c),
    "first track": lambda c: mixed(c, GOOD),
    "response": lambda c: cut(recording(transforms=[reverb(c)])),
    "response of a mix": lambda c: mixed(GOOD, GOOD, transforms=[reverb(c)]),
    "late transform": lambda c: cut(
        recording(transforms=[{"name": "Volume", "kwargs": {"factor": 0.5}}, reverb(c)])
    ),
    "custom": lambda c: cut(recording(), custom={"recording": c.get("recording", c), "cut": c}),
    "custom of a track": lambda c: mixed(GOOD, cut(recording(), custom={"target_recording": c})),
    "supervision": lambda c: {**GOOD, "supervisions": [{**SPEAKER, "custom": {"x": [c]}}]},
}


def hostile(pick: Choices):
    source = recording(*pick.among(COMMANDS))
    if pick.number(0, 1):
        source["transforms"] = [{"name": "Volume", "kwargs": {"factor": 0.5}}]
    manifest = cut(source)
    for _ in range(pick.number(0, 4)):
        manifest = HIDE[pick.among(sorted(HIDE))](manifest)
    defaults = {"supervisions": [SPEAKER], "recording": recording(), "start": 0.0, "duration": 0.1}
    return {**defaults, **manifest}  # as a manifest needs it; lhotse ignores this in mixed cuts


def transcribe_cut(manifest):
    Path("cuts.jsonl").write_text(json.dumps(manifest) + "\n")
    for source in Inputs(allow_pipes=True).sources(["cuts.jsonl"], io.BytesIO(), Path()):
        list(source.blocks(16000, 1.0))


def read_from_manifest(manifest):
    Path("cuts.jsonl").write_text(json.dumps(manifest) + "\n")
    for loaded_cut in read_cuts(Path("cuts.jsonl")):
        load_cut_audio(loaded_cut)


def read_from_store(manifest):
    config = FrontendConfig(num_mel_bins=4)
    entry = {**cut(recording()), **manifest}
    write_shard(Path("fbank/shards"), 0, [(entry, "s", torch.zeros(3, 4))], config)
    write_manifest(Path("fbank"), config, [{"utterances": 1, "frames": 3}])
    load_cut_audio(FeatureStore(Path("fbank")).cut("u"))


def read_for_report(manifest):
    Path("cuts.jsonl").write_text(json.dumps(manifest) + "\n")
    read_clip(Path("cuts.jsonl"), 0)


CUT_READERS = {
    "cuts-transcribed": transcribe_cut,
    "cuts-of-a-manifest": read_from_manifest,
    "cuts-of-features": read_from_store,
    "cuts-reported": read_for_report,
}


def try_one(read, pick: Choices):
    """Read a hostile cut and return whether it was refused."""
    manifest = hostile(pick)
    # An id of one letter is in every message: a message is all that is asked for.
    refused = reads_or_explains(lambda: read(manifest), (manifest["id"],))
    assert not Path("ran").exists()
    return refused


def write_clean():
    soundfile.write("clean.wav", np.random.default_rng(0).uniform(-0.1, 0.1, 1600), 16000)


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    working_directory = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("hostile"))
    write_clean()
    yield
    os.chdir(working_directory)


@pytest.mark.parametrize("read", CUT_READERS.values(), ids=CUT_READERS)
@FUZZ
@given(data=st.data())
def test_cuts_that_name_commands_run_nothing(read, data):
    try_one(read, Drawn(data.draw))


@pytest.mark.parametrize("read", CUT_READERS.values(), ids=CUT_READERS)
@pytest.mark.parametrize("way", sorted(HIDE))
def test_cuts_without_commands_are_read(read, way):
    read({"supervisions": [SPEAKER], "recording": recording(), "start": 0.0, "duration": 0.1}
         | HIDE[way](GOOD))  # fmt: skip


def test_lhotse_alone_runs_the_commands_of_cuts():
    from lhotse.audio.backend import audio_backend
    from lhotse.serialization import deserialize_item

    for hide in ("track", "first track", "response", "response of a mix", "late transform"):
        for kind, source in COMMANDS[:2]:
            deserialized = deserialize_item(HIDE[hide](cut(recording(kind, source))))
            # What it read from the command may be no audio.
            with suppress(Exception), audio_backend("default"):
                deserialized.load_audio()
            assert Path("ran").exists(), (hide, kind)
            Path("ran").unlink()
