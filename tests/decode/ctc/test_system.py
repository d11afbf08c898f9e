"""Every search on the same posteriors, killed and continued."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks.synthetic import Emissions
from recipes.steps import ctc as steps
from toolkit.decode.config import CtcDecodeConfig, PrefixConfig, TuneConfig, WordsConfig
from toolkit.decode.ctc.system import SplitData, decode_ctc
from toolkit.lang.arpa import write_arpa
from toolkit.lang.ngram import estimate
from toolkit.lang.units import Characters

TEXTS = {
    "dev": {"u1": "A BIG BALL", "u2": "THE CAT SAT"},
    "test": {"u3": "A CAT", "u4": "THE BALL SAT"},
}
CONFIG = CtcDecodeConfig(
    PrefixConfig(width=8),
    WordsConfig(width=8),
    tune=TuneConfig(lm_weights=(0.5, 1.0), word_bonuses=(0.0,)),
    tune_width=4,
)


class KilledError(Exception):
    """In place of a signal."""


class Task:
    """Two splits of two utterances each."""

    def __init__(self, folder):
        units, rng = Characters(), np.random.default_rng(0)
        self.units, self.arpa = units, folder / "lm.arpa"
        sentences = [text.split() for texts in TEXTS.values() for text in texts.values()]
        self.words = sorted({word for sentence in sentences for word in sentence})
        write_arpa(estimate(sentences, set(self.words), 2)[0], self.arpa)
        self.splits = {
            split: SplitData(
                {
                    name: torch.from_numpy(
                        Emissions().draw(units.encode(text), units.size, units.blank, rng)
                    )
                    for name, text in texts.items()
                },
                texts,
                dict.fromkeys(texts, "anna"),
                4.0,
            )
            for split, texts in TEXTS.items()
        }

    def decode(self, out, progress=lambda done, total: None, more=()):
        return decode_ctc(
            self.splits,
            ["dev"],
            self.units,
            [*self.words, *more],
            self.arpa,
            "2gram",
            CONFIG,
            out,
            1,
            "./run_ctc.py",
            progress,
        )


@pytest.fixture
def task(tmp_path):
    return Task(tmp_path)


def rows(out):
    return [{**row, "rtf": 0.0} for row in json.loads((out / "rows.json").read_text())]


def stamps(folder):
    """Inode and time of each file: they change when it is rewritten."""
    files = {path: path.stat() for path in folder.rglob("*") if path.is_file()}
    return {
        str(path.relative_to(folder)): (status.st_ino, status.st_mtime_ns)
        for path, status in files.items()
    }


def test_a_killed_decode_repeats_no_search(task, tmp_path):
    headline = task.decode(tmp_path / "whole")
    out, old_stamps = tmp_path / "killed", {}

    def kill(done, total):
        assert total == 10
        if not (out / f"killed.{done}").exists():
            (out / f"killed.{done}").touch()
            raise KilledError

    for _ in range(10):
        with pytest.raises(KilledError):
            task.decode(out, kill)
        assert stamps(out) | old_stamps == stamps(out)  # the graph, and what was tuned or decoded
        old_stamps = stamps(out)
    assert task.decode(out, kill) == headline
    assert stamps(out) | old_stamps == stamps(out)
    assert len(stamps(out)) == len(old_stamps) + 1
    assert rows(out) == rows(tmp_path / "whole")
    stored = out / "greedy" / "dev" / "row.json"
    assert json.loads((out / "rows.json").read_text())[0] == json.loads(stored.read_text())[0]
    for path in (tmp_path / "whole").rglob("t*"):  # text, tuned.json
        name = path.relative_to(tmp_path / "whole")
        assert path.is_dir() or (out / name).read_bytes() == path.read_bytes(), name


def kill_at_once(done, total):
    raise KilledError


def test_unwritable_words_are_reported(task, tmp_path, caplog):
    with pytest.raises(KilledError):
        task.decode(tmp_path / "none", kill_at_once)
    assert not (tmp_path / "none" / "unwritable.txt").exists()
    assert caplog.messages == []
    with pytest.raises(KilledError):
        task.decode(tmp_path / "two", kill_at_once, more=["3D", "R2D2"])
    (message,) = caplog.messages
    assert message.startswith("2 of 8 dictionary words")
    assert "such as 3D, R2D2" in message
    assert (tmp_path / "two" / "unwritable.txt").read_text() == "3D\nR2D2\n"


def test_a_split_without_transcripts_is_decoded_and_not_scored(task, tmp_path, caplog):
    expected, progress = task.decode(tmp_path / "known"), []
    test = task.splits["test"]
    task.splits["test"] = replace(test, references=dict.fromkeys(test.references, ""))
    out = tmp_path / "unknown"
    headline = task.decode(out, lambda done, total: progress.append((done, total)))
    assert headline == {name: value for name, value in expected.items() if name.endswith("dev")}
    assert progress == [(number + 1, 10) for number in range(10)]
    assert {row["split"] for row in rows(out)} == {"dev"}
    assert caplog.messages == ["test has no error rate: its reference transcripts contain no words"]
    for search in ("greedy", "words+2gram"):
        text = f"{search}/test/text"
        assert (out / text).read_bytes() == (tmp_path / "known" / text).read_bytes()


def test_utterances_without_posteriors_are_deletions(task, tmp_path):
    expected = task.decode(tmp_path / "with")
    test = task.splits["test"]
    lost = next(iter(test.references))
    remaining = {u: x for u, x in test.posteriors.items() if u != lost}
    task.splits["test"] = replace(test, posteriors=remaining)
    out = tmp_path / "without"
    headline = task.decode(out)
    assert headline["wer dev"] == expected["wer dev"]
    complete, incomplete = (
        {row["lm"]: row for row in rows(folder) if row["split"] == "test"}
        for folder in (tmp_path / "with", out)
    )
    for search, row in incomplete.items():
        assert row["ref_words"] == complete[search]["ref_words"]
        assert row["del"] >= len(test.references[lost].split())
        lines = (out / search / "test/text").read_text().splitlines()
        assert lines[-1] == lost
        assert len(lines) == len(test.references)


def test_the_sweep_is_on_the_first_development_split_with_transcripts(monkeypatch):
    """LibriSpeech's dev-clean: the paper's sweep is on clean validation data (A31)."""
    texts = {"dev-array": [""], "dev-clean": ["A B"], "dev-other": ["A"], "test-other": ["C"]}
    swept, row = [], SimpleNamespace(width=64, wer=24.75)
    monkeypatch.setattr(steps, "splits", lambda run: SimpleNamespace(decoded=tuple(texts)))
    monkeypatch.setattr(steps, "cuts", lambda run, split: texts[split])
    monkeypatch.setattr(steps, "text_of", str)
    monkeypatch.setattr(steps, "tuned_search", lambda run, width: (None, None))
    data = SimpleNamespace(posteriors={}, references={})
    monkeypatch.setattr(steps, "split_data", lambda run, split, posteriors: data)
    monkeypatch.setattr(
        steps, "stored_sweep", lambda *arguments: swept.append(arguments[5]) or [row]
    )
    decode = SimpleNamespace(words=WordsConfig(width=8))
    config = SimpleNamespace(decode=decode, sweep=(1,))
    run = SimpleNamespace(config=config, jobs=1, need=str, make=str)
    assert steps.sweep_widths(run) == {"wer dev-clean 64": 24.75}
    assert swept == ["dev-clean"]
