"""Beam width against time and accuracy on a run's posteriors, beside the paper's table (A31)."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import click
from torch import Tensor

from toolkit.bench.instruments.published import MARK, published
from toolkit.bench.tta.runs import BenchRunError
from toolkit.config.convert import from_plain
from toolkit.config.parameters import FILE
from toolkit.corpus.manifest import read_cuts, text_of
from toolkit.decode.ctc.posteriors import Posteriors
from toolkit.decode.ctc.words import WordsConfig, WordsDecoder
from toolkit.environment import machine, versions
from toolkit.errors import ToolkitError
from toolkit.lang.ngram.arpa import read_arpa
from toolkit.lang.units.choice import load_units
from toolkit.score.cer import error_rates
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import read_json, reading

WIDTHS = (1, 8, 64, 128, 256, 512, 1024, 2048, 4096)


@dataclass(frozen=True)
class Row:
    """A beam width on a test set."""

    width: int
    seconds: float
    """For all utterances."""
    wer: float
    """In percent."""
    cer: float
    """In percent of the longer of reference and hypothesis (A25)."""
    cer_usual: float
    """In percent of the reference."""
    microseconds: float
    """Seconds per frame and prefix of the beam, times jobs, in millionths."""


def sweep(
    decoder: WordsDecoder,
    log_probs: Mapping[str, Tensor],
    references: Mapping[str, str],
    widths: Sequence[int],
    jobs: int = 1,
) -> Iterator[Row]:
    """Decode a test set at several widths; yield a row for each.

    Args:
      decoder: everything but the width.
      log_probs: [T, C] of each utterance, by id.
      references: transcript by utterance id.
      widths: of the beam.
      jobs: see `Decoder.decode_many`.
    """
    utterances = list(log_probs.values())
    frames = sum(map(len, utterances))
    decoder.decode(utterances[0][:1])  # compiles
    for width in widths:
        wide = decoder.widened(width)
        before = perf_counter()
        texts = [found[0].text for found in wide.decode_many(utterances, jobs)]
        seconds = perf_counter() - before
        rates = error_rates(references, dict(zip(log_probs, texts, strict=True)))
        cost = 1e6 * seconds * min(jobs, len(utterances)) / max(1, frames * width)
        yield Row(width, seconds, rates.wer, rates.cer, rates.cer_usual, cost)


def stored_sweep(
    decoder: WordsDecoder,
    log_probs: Mapping[str, Tensor],
    references: Mapping[str, str],
    widths: Sequence[int],
    jobs: int,
    split: str,
    out: Path,
) -> list[Row]:
    """Sweep as `sweep` does, storing each row as it comes.

    Called again after a kill, it goes on after the last row, unless `jobs`, of which the seconds
    depend, has changed.

    Args:
      decoder, log_probs, references, widths, jobs: see `sweep`.
      split: the test set's name.
      out: the file that gets `split`, `jobs` and `rows`.

    Raises:
      BenchRunError: a file that cannot be read.
    """
    rows = _stored_rows(out, jobs)
    done = {row.width for row in rows}
    missing = [width for width in widths if width not in done]
    for row in sweep(decoder, log_probs, references, missing, jobs):
        rows.append(row)
        plain = {"split": split, "jobs": jobs, "rows": [asdict(row) for row in rows]}
        write_atomically(out, json.dumps(plain, indent=1) + "\n")
    return rows


def _stored_rows(path: Path, jobs: int) -> list[Row]:
    if not os.path.lexists(path):
        return []
    with reading(path, BenchRunError, "remove it to sweep again", "is no sweep"):
        plain = read_json(path, {"jobs": int, "rows": [{str: Any}]})
        return [from_plain(Row, row) for row in plain["rows"] if plain["jobs"] == jobs]


@dataclass(frozen=True)
class Task:
    """What is decoded, and by what."""

    decoder: WordsDecoder
    log_probs: Posteriors
    references: dict[str, str]
    split: str

    @classmethod
    def of_run(cls, run: Path, split: str | None, config: WordsConfig) -> "Task":
        """Read units, dictionary, language model and posteriors of a finished CTC run.

        Weights are those that were tuned there, where that was done.

        Args:
          run: the run directory.
          split: one of those decoded; by default the first by name.
          config: the search.

        Raises:
          click.ClickException: no posteriors of that split.
        """
        splits = sorted(path.parent.name for path in run.glob("posteriors/*/posteriors.json"))
        if not splits or split not in (None, *splits):
            raise click.ClickException(
                f"{run}: no posteriors{f' of {split}' if split else ''} there, only of"
                f" {', '.join(splits) or 'nothing'}; run the recipe's decoding stage first"
            )
        split = split or splits[0]
        tuned = sorted(run.glob("decode/ctc/words+*/tuned.json"))
        if tuned:
            plain = json.loads(tuned[0].read_text(encoding="utf-8"))
            weights = {name: plain[name] for name in ("lm_weight", "word_bonus")}
            config = replace(config, **weights)
        words = (run / "words.txt").read_text(encoding="utf-8").split()
        lm = None if config.mode == "words" else read_arpa(run / "lm" / "lm.arpa")
        posteriors = Posteriors(run / "posteriors" / split)
        texts = {cut.id: text_of(cut) for cut in read_cuts(run / "data" / f"{split}.jsonl")}
        return cls(
            WordsDecoder(load_units(run / "units"), words, lm, config),
            posteriors,
            {utterance: texts[utterance] for utterance in posteriors},
            split,
        )


@click.command("ctc-sweep")
@click.argument("run", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--split", help="Which of the decoded splits; by default the first by name.")
@click.option(
    "--mode", type=click.Choice(["words", "ngrams", "forecast"]), default="forecast",
    show_default=True, help="Use of the language model.",
)  # fmt: skip
@click.option("--width", "widths", type=int, multiple=True, help="Widths instead of 1 ... 4096.")
@click.option("--jobs", default=1, show_default=True, help="Threads.")
@click.option("--json", "json_file", type=FILE, help="Also write the rows to this file.")
def command(
    run: Path,
    split: str | None,
    mode: str,
    widths: tuple[int, ...],
    jobs: int,
    json_file: Path | None,
) -> None:
    """Set beam width against time and accuracy, beside the paper's table (A31).

    RUN is the directory of a CTC run.

    \b
    Example:
      toolkit bench ctc-sweep exp/ctc-demo --split test --width 16 --width 256
    """
    from rich.console import Console

    try:
        task = Task.of_run(run, split, WordsConfig(mode=mode))
        rows = [*sweep(task.decoder, task.log_probs, task.references, widths or WIDTHS, jobs)]
    except ToolkitError as error:
        raise click.ClickException(str(error)) from error
    Console().print(table(rows, f"{task.split}, {len(task.references)} utterances, {mode}"))
    if json_file is not None:
        plain = {"split": task.split, "mode": mode, "jobs": jobs} | {
            "rows": [asdict(row) for row in rows],
            "machine": machine(),
            "versions": versions(),
        }
        write_atomically(json_file, json.dumps(plain, indent=1) + "\n")


def table(rows: Sequence[Row], title: str):  # noqa: ANN201 - a rich table
    """The rows for a rich console, the paper's below them."""
    from rich.table import Table

    theirs = published("A31")
    found = Table(
        title=f"Beam width: {title}",
        caption=f"{MARK}: {theirs.title}; {theirs.source}, {theirs.place}",
        caption_justify="left",
    )
    for name in ("width", "seconds", "WER %", "CER %", "usual CER %", "us / frame / width"):
        found.add_column(name, justify="right")
    for row in rows:
        found.add_row(
            str(row.width), f"{row.seconds:.2f}", f"{row.wer:.2f}", f"{row.cer:.3f}",
            f"{row.cer_usual:.3f}", f"{row.microseconds:.2f}",
        )  # fmt: skip
    found.add_section()
    for width, seconds, wer, cer in theirs.rows:
        found.add_row(f"{width} {MARK}", f"{seconds:g}", f"{wer:.2f}", f"{cer:.3f}", "", "")
    return found
