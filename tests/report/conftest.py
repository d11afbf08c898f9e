"""A made-up run directory, written by the writers of the toolkit, with hostile names and texts."""

import json

import numpy as np
import pytest
import soundfile

from tests.markers import make_marker
from toolkit.corpus.manifest import make_cut, probe_recording, write_cuts
from toolkit.score.results import record_results, score_split
from toolkit.stages.marker import CodeVersion
from toolkit.storage.digests import Content
from toolkit.train.runlog import Created, Evaluated, RunLogWriter, Sentences, Step

VERSIONS = {"python": "3.10.1", "torch": "1.13.1", "k2": None}
HOSTILE = '<script>alert(1)</script>"><img/src=x/onerror=alert(2)>'
"""One word of a transcript that would be markup if it were not escaped."""


def marker(number, title, outputs=None, inputs=None, **options):
    """A stage that took `number` seconds."""
    values = {
        "parameters": {"corpus": {"name": "made up"}},
        "inputs": inputs,
        "outputs": outputs or {},
        "code": CodeVersion("0123456789abcdef", True, "d" * 32, VERSIONS),
        "command": "recipes/made_up/run.py --profile tiny",
        "started": "2026-01-01T00:00:00+00:00",
        "ended": "2026-01-01T00:00:00+00:00",
        "seconds": float(number),
        "headline": {"wer": 12.5},
    } | options
    return make_marker(number, title, **values)


class MadeUpRun:
    """A run of four utterances per split, two systems, a training with a log."""

    texts = ("the cat sat", "on the mat", f"see {HOSTILE} now", "one two three four")

    def __init__(self, root):
        self.root = root
        (root / "stages").mkdir(parents=True)

    def data(self, splits=("train", "dev", "test")):
        """Write manifests with audio."""
        rng = np.random.default_rng(0)
        names = {"train": splits[0], "tune": [splits[1]], "test": list(splits[2:])}
        for split in splits:
            cuts = []
            for n, text in enumerate(self.texts):
                path = self.root / f"corpus/{split}-{n}.flac"
                path.parent.mkdir(exist_ok=True)
                samples = rng.standard_normal(16000 * (n + 1) // 4) * 0.1
                soundfile.write(path, samples, 16000)
                name = f"{split}-{n}"
                recording, _ = probe_recording(path, name)
                cuts.append(make_cut(name, recording, text, f"speaker-{n % 2}"))
            (self.root / "data").mkdir(exist_ok=True)
            write_cuts(cuts, self.root / f"data/{split}.jsonl")
        self.write("data/splits.json", json.dumps(names))

    def check(self):
        """Write a data report with one finding, and its exclusion."""
        kind = {"severity": "error", "title": "no words", "fix": "write some"}
        findings = [
            {
                "kind": "empty-transcript",
                "split": "train",
                "id": "train-0",
                "detail": HOSTILE,
                "excluded": True,
            }
        ]
        splits = [{"split": "dev", "tokens": 10, "oov_tokens": 1}]
        report = {"splits": splits, "kinds": {"empty-transcript": kind}, "findings": findings}
        self.write("check/report.json", json.dumps(report))
        head = "split\tutterance\tcopy\treason\n"
        self.write("check/excluded.tsv", f"{head}train\ttrain-0\t1\tempty-transcript\n")

    def decode(self, system="mono", splits=("dev", "test"), lm="3gram"):
        """Write hypotheses with one error of each kind, result rows, grid and tuned weights."""
        wrong = ("the hat sat", "the mat", f"see {HOSTILE} now", "one two three four five")
        rows = []
        for split in splits:
            names = [f"{split}-{n}" for n in range(len(self.texts))]
            texts = (texts[: len(names)] for texts in (self.texts, wrong))
            refs, hyps = (dict(zip(names, split_texts, strict=True)) for split_texts in texts)
            speakers = {name: f"speaker-{n % 2}" for n, name in enumerate(names)}
            out = self.root / f"decode/{system}/{split}"
            options = {"system": system, "split": split, "lm": lm, "rtf": 0.01, "command": "run.py"}
            rows.append(score_split(refs, hyps, speakers, out, **options))
        record_results(self.root / f"decode/{system}/rows.json", rows)
        grid = "acoustic_scale\tword_penalty\terrors\twords\twer\n"
        grid += "0.1\t0\t3\t13\t23.08\n0.1\t1\t4\t13\t30.77\n"
        self.write(f"decode/{system}/grid.tsv", grid)
        self.write(f"decode/{system}/tuned.json", '{"acoustic_scale": 0.1, "word_penalty": 0.0}')
        return rows

    def gains(self):
        """Write relative gains on two splits; on the second the baseline makes no error."""
        gain = {"split": "dev", "werr": 12.34, "low": -1.0, "high": 20.5}
        nothing = {"split": "test", "werr": None, "low": None, "high": None}
        self.write("werr.json", json.dumps({"lstm": [gain, nothing]}))

    def histories(self):
        """Write histories of GMMs and of a network, and a run log."""
        gmm = [
            {"iteration": n, "log_likelihood_per_frame": -50.0 + n, "gaussians": 10 * n}
            for n in (1, 2, 3)
        ]
        self.write("mono/history.json", json.dumps(gmm))
        network = [
            {
                "epoch": n,
                "loss": 3.0 / n,
                "valid_loss": 3.2 / n,
                "accuracy": 0.2 * n,
                "seconds": 2.0,
            }
            for n in (1, 2, 3)
        ]
        self.write("lstm/history.json", json.dumps(network))
        now = [0.0]
        log = RunLogWriter(self.root / "ctc/log.jsonl", lambda: now[0])
        log.create(Created(batch=4))
        for epoch in (1, 2, 3):
            now[0] += 30
            log.write(Step(step=epoch, epoch=epoch, loss=10.0 / epoch, examples=4))
            sentences = {"references": (HOSTILE,), "hypotheses": ("a b",)}
            log.write(Sentences(step=epoch, epoch=epoch, **sentences))
            log.write(
                Evaluated(step=epoch, epoch=epoch, wer=90.0 / epoch, cer=40.0 / epoch, loss=9)
            )

    def stages(self):
        """Write markers of stages that are done, stale, failed and partial."""
        content = Content(1, "aa", files={"dev.jsonl": "11"})
        marker(2, "Write the manifests", {"data": content}).write(self.root / "stages/02.json")
        read = {"data/dev.jsonl": Content(1, "22")}
        stale = marker(3, f"Check {HOSTILE}", inputs=read, headline={"faults": HOSTILE})
        stale.write(self.root / "stages/03.json")
        self.write("stages/04.failed.txt", f"no lexicon {HOSTILE}\n\nnow\nTraceback: {HOSTILE}")
        self.write(".partial/05.json", '{"parameters": {}, "inputs": {}, "forced": false}')
        self.write(".partial/05.progress.json", '{"done": 31, "total": 50, "seconds": 7.5}')
        last = {"recipe": "made_up", "profile": f"tiny{HOSTILE}"}
        self.write("stages/last_command.json", json.dumps(last))
        self.write(
            "log.txt",
            "2026-01-01T00:00:00+00:00 == 4 Prepare lexicon (--stage 4)\n"
            "2026-01-01T00:00:00+00:00 == 5 Train (--stage 5)\n"
            f"2026-01-01T00:00:00+00:00    {HOSTILE}\n",
        )

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


@pytest.fixture
def made_up(tmp_path):
    """A run directory without anything in it yet."""
    return MadeUpRun(tmp_path / "exp")


@pytest.fixture
def finished(made_up):
    """A run with every part."""
    made_up.data()
    made_up.check()
    made_up.histories()
    made_up.decode("mono")
    made_up.decode("lstm", lm="4gram")
    made_up.gains()
    made_up.stages()
    return made_up
