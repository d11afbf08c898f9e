"""A made-up corpus of telephone calls, a speaker on each channel, from `new-corpus` to a WER."""

import itertools
import re
import subprocess

import numpy as np
import pytest
import soundfile

from tests.guide.conftest import environment, make_project
from toolkit.features.shards import FeatureStore

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
RATE = 8000
TONES = {"A": (300, 900), "B": (700, 2500), "C": (1500, 3300), "D": (450, 1900), "E": (1000, 2900)}
WORDS = ("ABBA", "BED", "CAB", "ACE", "DEAD", "DECADE", "BEAD", "DAB")
SPEAKERS = ("ann", "ben", "cleo", "dora", "emil", "finn", "gina", "hans")
CALLS, SECONDS, SEGMENTS = 16, 22.0, 4


def speak(words, rng, pitch):
    """Samples of words whose letters are pairs of tones."""
    pieces = [np.zeros(int(0.2 * RATE))]
    for word in words:
        for letter in word:
            time = np.arange(round(rng.uniform(0.08, 0.14) * RATE)) / RATE
            pieces.append(0.1 * sum(np.sin(2 * np.pi * pitch * f * time) for f in TONES[letter]))
        pieces.append(np.zeros(int(rng.choice([0.05, 0.25]) * RATE)))
    return np.concatenate(pieces)


def write_calls(root):
    """Write the calls as two-channel files, and each side once more as a separate file."""
    rng = np.random.default_rng(0)
    tables = {name: [] for name in ("text", "utt2spk", "segments")}
    scp, copies, sides = [], [], []
    (root / "audio").mkdir(parents=True)
    for call in range(CALLS):
        talkers = (SPEAKERS[call % 8], SPEAKERS[(call + 1 + 2 * (call // 8)) % 8])
        samples = 0.003 * rng.standard_normal((int(SECONDS * RATE), 2))
        for side, talker in zip("AB", talkers, strict=True):
            recording = f"call{call:02d}-{side}"
            for number in range(SEGMENTS):  # both talk at the same time
                words = rng.choice(WORDS, 5)
                spoken = speak(words, rng, 0.9 + 0.03 * SPEAKERS.index(talker))
                start = number * SECONDS / SEGMENTS
                begin = int(start * RATE)
                samples[begin : begin + len(spoken), "AB".index(side)] += spoken
                id = f"{talker}-{recording}-{number}"
                tables["text"].append(f"{id} {' '.join(words)}")
                tables["utt2spk"].append(f"{id} {talker}")
                end = start + len(spoken) / RATE
                tables["segments"].append(f"{id} {recording} {start:.2f} {end:.2f}")
            scp.append(f"{recording} {root}/audio/call{call:02d}.wav")
            copies.append(f"{recording} {root}/audio/{recording}.wav")
            sides.append(f"{recording} call{call:02d} {side}")
        path = root / f"audio/call{call:02d}.wav"
        soundfile.write(path, samples, RATE, subtype="PCM_16")
        written, _ = soundfile.read(path, dtype="int16")
        for number, side in enumerate("AB"):
            soundfile.write(root / f"audio/call{call:02d}-{side}.wav", written[:, number], RATE)
    for folder, wavs in (("calls", scp), ("copies", copies)):
        (root / folder).mkdir()
        for name, lines in {**tables, "wav.scp": wavs}.items():
            (root / folder / name).write_text("".join(f"{line}\n" for line in sorted(lines)))
    (root / "calls/reco2file_and_channel").write_text("".join(f"{line}\n" for line in sides))
    (root / "lexicon.txt").write_text("".join(f"{w} {' '.join(w)}\n" for w in WORDS))


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    root = make_project(tmp_path_factory.mktemp("project"))
    write_calls(root / "speech")
    return root


def run(project, *command):
    done = subprocess.run(
        command,
        cwd=project,
        env={**environment(), "PYTHONPATH": str(project)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def new_corpus(project, name):
    return run(
        project,
        *(".venv/bin/toolkit", "new-corpus", name, "--from-kaldi"),
        *(f"speech/{name}", "--lexicon", "speech/lexicon.txt"),
    )


def test_calls_are_recognised_and_have_the_features_of_single_sides(project):
    assert "many-channels" not in new_corpus(project, "calls")
    printed = run(project, "recipes/calls/run.py", "--stop-stage", "8", "--jobs", "1")
    rates = re.findall(r"mono (\w+) 3gram: %WER ([\d.]+)", printed)
    assert [split for split, _ in rates] == ["dev", "test"]
    # Who hears both sides gets most of the words wrong.
    assert all(float(rate) < 30 for _, rate in rates), printed
    new_corpus(project, "copies")
    run(project, "recipes/copies/run.py", "--stop-stage", "6", "--jobs", "1")
    for kind, split in itertools.product(("plp", "fbank"), ("train", "dev", "test")):
        calls, copies = (
            dict(FeatureStore(project / f"recipes/{name}/exp/base/{kind}/{split}").iter())
            for name in ("calls", "copies")
        )
        assert list(calls) == list(copies) != []
        assert all(features.equal(copies[id]) for id, features in calls.items())
