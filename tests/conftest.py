"""Synthetic audio files, and speech drawn from known Gaussians."""

import json
import os
import random
from collections import defaultdict
from pathlib import Path

# Small tensors: threads that wait for each other on busy cores take ten times as long as one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import numpy as np
import pytest
import soundfile

# Before torch, as in every command: it chooses the BLAS that worker processes get too.
import toolkit  # noqa: F401  # isort: skip
import torch  # isort: skip

from toolkit.processes.workers import freeze_imports

# No test is timed: on a busy machine any example can take long.
hypothesis.settings.register_profile("toolkit", deadline=None)
hypothesis.settings.load_profile("toolkit")

DURATIONS = Path(__file__).with_name("durations.json")
"""Seconds by file of tests, measured by `pytest --store-durations` in a run of all tests."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Use one more process than cores, since some tests only wait."""
    return (os.cpu_count() or 1) + 1


def pytest_addoption(parser):
    parser.addoption(
        "--store-durations",
        action="store_true",
        help="write the seconds of each file of tests to tests/durations.json",
    )
    parser.addoption(
        "--shared-runs",
        metavar="FOLDER",
        help="keep the runs that several tests look at in this folder, for another session",
    )
    parser.addoption(
        "--one-recipe-run",
        action="store_true",
        help="run the hybrid recipe once, with more training, not also with the quickest settings",
    )


def pytest_configure(config):
    # With xdist the reports of all processes reach the one that has no worker id.
    if config.getoption("--store-durations") and "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(StoredDurations())


def pytest_collection_modifyitems(items):
    """Run the longest files first, so all processes are busy to the end."""
    seconds = json.loads(DURATIONS.read_text())
    items.sort(key=lambda item: -seconds.get(item.nodeid.partition("::")[0], 0.0))


def pytest_collection_finish():
    """Exclude imported objects from garbage collection, which makes it faster."""
    freeze_imports()


class StoredDurations:
    """Adds the durations of a run to `DURATIONS`; a file of less than a second has no entry."""

    def __init__(self) -> None:
        self.seconds = defaultdict(float)

    def pytest_runtest_logreport(self, report):
        self.seconds[report.nodeid.partition("::")[0]] += report.duration

    def pytest_sessionfinish(self):
        stored = json.loads(DURATIONS.read_text()) | self.seconds
        durations = {name: round(stored[name], 1) for name in sorted(stored) if stored[name] >= 1}
        DURATIONS.write_text(json.dumps(durations, indent=1) + "\n")


class DrawnSpeech:
    """A feature store of frames drawn from known Gaussians, and what was drawn.

    Phones are A, B, X, Y; a word is A or B followed by X or Y. X sounds behind A as Y does behind
    B, and the other way round: without context nobody tells them apart. `distort` gives speakers
    an affine transform (matrix, offset) of their frames; the utterances in `truncated` have but
    two frames.
    """

    words = ("AX", "AY", "BX", "BY")
    dimension = 3

    def __init__(self, folder, utterances=12, seed=0, distort=None, truncated=()) -> None:
        from toolkit.hmm.topology import Topology
        from toolkit.lang.lang import Lang
        from toolkit.lang.lexicon import Lexicon

        lang = Lang.of(Lexicon({word: [tuple(word)] for word in self.words}))
        self.topology = Topology(tuple(lang.real_phones))
        self.phones = lang.phones
        self.cepstra, self.lang = folder / "plp", folder / "lang"
        lang.save(self.lang)
        self.transcripts, self.states, frames = {}, {}, {}
        rng = random.Random(seed)
        generator = torch.Generator().manual_seed(seed)
        for speaker in ("anna", "bert", "carl"):
            matrix, offset = (distort or {}).get(speaker, (torch.eye(3), torch.zeros(3)))
            for number in range(utterances):
                name = f"{speaker}-{number:02d}"
                words = rng.choices(self.words, k=rng.randint(4, 6))
                phones = self._with_pauses(words, rng)
                means, states = zip(*self._path(phones, rng), strict=True)
                x = torch.tensor(means) + torch.randn(len(means), 3, generator=generator)
                x = x @ matrix.T + offset
                length = 2 if name in truncated else len(states)
                self.transcripts[name] = words
                self.states[name] = torch.tensor(states)[:length]
                frames[name] = x[:length]
        self._write(frames)

    @classmethod
    def mean(cls, left, phone, state):
        """Return the mean of a phone's state, given the phone before it."""
        places = {"SIL": (-4.0, -4.0, 0.0), "A": (6.0, 0.0, 0.0), "B": (0.0, 6.0, 0.0)}
        x, y, z = places.get(phone, (0.0, 0.0, 0.0))
        if phone in "XY":
            z = 6.0 if (left == "A") == (phone == "X") else -6.0
        return (x, y, z) if phone == "SIL" else (x - state, y - state, z + state)

    def _with_pauses(self, words, rng):
        """The phones of words, silence at both edges and now and then between them."""
        phones = ["SIL"]
        for word in words:
            phones += [*word, *(["SIL"] if rng.random() < 0.2 else [])]
        return phones if phones[-1] == "SIL" else [*phones, "SIL"]

    def _path(self, phones, rng):
        """(mean, state id) of every frame."""
        for left, phone in zip(["SIL", *phones], phones, strict=False):
            for state in range(self.topology.num_states(self.phones[phone])):
                for _ in range(rng.randint(1, 3)):
                    yield (
                        self.mean(left, phone, state),
                        self.topology.state_id(self.phones[phone], state),
                    )

    def _write(self, frames):
        from tests.dummies import dummy_recording
        from toolkit.corpus.manifest import make_cut
        from toolkit.features.config import FrontendConfig
        from toolkit.features.shards import write_manifest, write_shard

        config = FrontendConfig(num_mel_bins=self.dimension)
        shards = []
        for number, speakers in enumerate((("anna", "bert"), ("carl",))):
            cuts = []
            for name, words in self.transcripts.items():
                speaker = name.partition("-")[0]
                if speaker in speakers:
                    cut = make_cut(name, dummy_recording(0), " ".join(words), speaker)
                    cuts.append((cut, speaker, frames[name]))
            written = write_shard(self.cepstra / "shards", number, cuts, config)
            shards.append(dict(zip(("utterances", "frames"), written, strict=True)))
        write_manifest(self.cepstra, config, shards)


@pytest.fixture
def audio():
    """Write noise to a file: audio(path, seconds, rate=16000, channels=1, seed=0) -> path."""

    def write(path, seconds=1.0, rate=16000, channels=1, seed=0, level=3000.0):
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(seed)
        samples = rng.standard_normal((round(seconds * rate), channels)) * level
        soundfile.write(str(path), samples.astype(np.int16), rate, subtype="PCM_16")
        return path

    return write


@pytest.fixture
def streamed():
    """Make a FLAC file look as written to a pipe: its header says 0 samples."""

    def forget(path):
        content = bytearray(Path(path).read_bytes())
        content[21] &= 0xF0
        content[22:26] = bytes(4)
        Path(path).write_bytes(content)
        return path

    return forget


@pytest.fixture
def truncate():
    """Cut a file's bytes in half."""

    def cut(path):
        content = Path(path).read_bytes()
        Path(path).write_bytes(content[: len(content) // 2])
        return path

    return cut


@pytest.fixture(scope="session")
def draw(tmp_path_factory):
    """Draw speech into a new folder."""
    return lambda **options: DrawnSpeech(tmp_path_factory.mktemp("drawn"), **options)


@pytest.fixture(scope="session")
def speech(draw):
    return draw()
