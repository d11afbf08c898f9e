"""The sweep over beam widths, on a synthetic run directory."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.synthetic import Emissions
from tests.dummies import dummy_recording
from toolkit.cli import main
from toolkit.corpus.findings import Exclusion, write_exclusions
from toolkit.corpus.manifest import make_cut, write_cuts
from toolkit.decode.config import WordsConfig
from toolkit.decode.ctc.search import WordsDecoder
from toolkit.features.shards import field_file, shard_writer
from toolkit.lang.arpa import write_arpa
from toolkit.lang.ngram import estimate
from toolkit.lang.units import Characters
from toolkit.tta.runs import BenchRunError
from toolkit.tta.sweep import Task, stored_sweep

TEXTS = {"u1": "A BIG BALL", "u2": "THE CAT SAT", "u3": "A CAT"}


@pytest.fixture
def run(tmp_path):
    """A finished run: three utterances with posteriors."""
    units, rng = Characters(), np.random.default_rng(0)
    units.save(tmp_path / "units")
    folder = tmp_path / "posteriors" / "dev"
    folder.mkdir(parents=True)
    with shard_writer(folder / field_file("posteriors", 0)) as writer:
        for name, text in TEXTS.items():
            emissions = Emissions().draw(units.encode(text), units.size, units.blank, rng)
            writer.add_array(name, emissions)
    (folder / "posteriors.json").write_text(json.dumps({"utterances": len(TEXTS)}))
    cuts = [make_cut(name, dummy_recording(0), text, "anna") for name, text in TEXTS.items()]
    write_cuts(cuts, tmp_path / "data" / "dev.jsonl")
    sentences = [text.split() for text in TEXTS.values()]
    words = sorted({word for sentence in sentences for word in sentence})
    (tmp_path / "words.txt").write_text("".join(f"{word}\n" for word in words))
    write_arpa(estimate(sentences, set(words), 2)[0], tmp_path / "lm" / "lm.arpa")
    return tmp_path


def test_every_width_gets_a_row_beside_the_published_ones(run):
    out = run / "sweep.json"
    arguments = [str(run), "--width", "2", "--width", "64", "--json", str(out)]
    result = CliRunner().invoke(main, ["tta", "sweep", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    rows = json.loads(out.read_text())["rows"]
    assert [row["width"] for row in rows] == [2, 64]
    assert (rows[1]["wer"], rows[1]["cer"], rows[1]["cer_usual"]) == (0.0, 0.0, 0.0)
    assert rows[0]["cer_usual"] >= rows[0]["cer"]
    assert "usual CER %" in result.output
    assert all(row["seconds"] > 0 for row in rows)
    assert "4096 published" in result.output
    assert "8.943" in result.output


def test_weights_that_were_tuned_are_used(run):
    tuned = run / "decode" / "ctc" / "words+2gram" / "tuned.json"
    tuned.parent.mkdir(parents=True)
    tuned.write_text(json.dumps({"lm_weight": 0.3, "word_bonus": 1.5, "errors": 1, "words": 8}))
    config = Task.of_run(run, "dev", WordsConfig(width=7)).decoder.config
    assert (config.lm_weight, config.word_bonus, config.width) == (0.3, 1.5, 7)


def test_utterances_without_posteriors_are_deletions(run, tmp_path):
    texts = {**TEXTS, "short": "A CAT", "silent": "THE CAT"}
    cuts = [make_cut(name, dummy_recording(0), text, "anna") for name, text in texts.items()]
    write_cuts(cuts, run / "data" / "dev.jsonl")
    write_exclusions([Exclusion("dev", "silent", 1, "unreadable")], run / "check/excluded.tsv")
    task = Task.of_run(run, "dev", WordsConfig())
    (row,) = stored_sweep(
        task.decoder, task.log_probs, task.references, (64,), 1, "dev", tmp_path / "sweep.json"
    )
    assert row.wer == pytest.approx(100 * 2 / 10)


class KilledError(Exception):
    """Stands for a signal."""


def test_a_killed_sweep_continues_after_its_last_row(run, tmp_path, monkeypatch):
    task, out, searched = Task.of_run(run, "dev", WordsConfig()), tmp_path / "sweep.json", []
    widened = WordsDecoder.widened

    def widen_or_die(self, width):
        searched.append(width)
        if searched.count(width) == 1 and width in deaths:
            raise KilledError
        return widened(self, width)

    def run_sweep(jobs=1):
        sweep_arguments = task.decoder, task.log_probs, task.references, (2, 8, 64), jobs
        return stored_sweep(*sweep_arguments, "dev", out)

    monkeypatch.setattr(WordsDecoder, "widened", widen_or_die)
    deaths = ()
    whole = run_sweep()
    out.unlink()
    searched.clear()
    deaths = (8, 64)
    for widths in ([2], [2, 8]):
        with pytest.raises(KilledError):
            run_sweep()
        assert [row["width"] for row in json.loads(out.read_text())["rows"]] == widths
    rows = run_sweep()
    assert searched == [2, 8, 8, 64, 64]
    assert [(r.width, r.wer, r.cer) for r in rows] == [(r.width, r.wer, r.cer) for r in whole]
    stored = json.loads(out.read_text())
    assert (stored["split"], stored["jobs"]) == ("dev", 1)
    assert stored["rows"] == [asdict(row) for row in rows]
    assert run_sweep() == rows
    assert searched == [2, 8, 8, 64, 64]
    run_sweep(jobs=2)  # other seconds
    assert searched[5:] == [2, 8, 64]
    stored = json.loads(out.read_text()) | {"split": "test"}
    out.write_text(json.dumps(stored))
    run_sweep(jobs=2)  # rows of another split
    assert searched[8:] == [2, 8, 64]
    out.write_text("{")
    with pytest.raises(BenchRunError, match="remove it to sweep again"):
        run_sweep()


@pytest.mark.parametrize("arguments", [["--split", "test"], []])
def test_without_posteriors_it_says_which_command_to_run(run, tmp_path, arguments):
    if not arguments:
        (run / "posteriors" / "dev" / "posteriors.json").unlink()
    result = CliRunner().invoke(main, ["tta", "sweep", str(run), *arguments])
    assert result.exit_code == 1
    assert "decoding stage" in result.output


@pytest.mark.parametrize("option", ["--width", "--jobs"])
def test_numbers_below_one_are_refused(option, run):
    result = CliRunner().invoke(main, ["tta", "sweep", str(run), option, "0"])
    assert result.exit_code == 2, result.output
    assert option in result.output
