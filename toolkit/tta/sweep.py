"""Sweep the beam width on a run's posteriors: time and accuracy, beside the paper's (A31)."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from torch import Tensor

from toolkit.config.fields import from_plain
from toolkit.corpus.manifest import read_cuts, text_of
from toolkit.decode.config import WordsConfig
from toolkit.decode.ctc.search import WordsDecoder
from toolkit.decode.ctc.system import Posteriors
from toolkit.environment import machine, versions
from toolkit.lang.arpa import read_arpa
from toolkit.lang.units import load_units
from toolkit.score.wer import error_rates
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import read_json, reading
from toolkit.tta.runs import BenchRunError
from toolkit.tta.tables import PUBLISHED_MARK, published

WIDTHS = (1, 8, 64, 128, 256, 512, 1024, 2048, 4096)


@dataclass(frozen=True)
class Row:
    """The results of a beam width on a test set."""

    width: int
    seconds: float
    """Decoding time of all utterances."""
    wer: float
    """Word error rate in percent."""
    cer: float
    """Character error rate in percent of the longer of reference and hypothesis (A25)."""
    cer_usual: float
    """Character error rate in percent of the reference."""
    microseconds: float
    """Microseconds of decoding per frame and prefix of the beam, times the jobs that ran."""


def sweep(
    decoder: WordsDecoder,
    log_probs: Mapping[str, Tensor],
    references: Mapping[str, str],
    widths: Sequence[int],
    jobs: int = 1,
) -> Iterator[Row]:
    """Decode a test set at several widths; yield a row for each.

    Args:
      decoder: the decoder; its width is replaced.
      log_probs: [T, C] of each utterance, by id.
      references: transcript by utterance id.
      widths: beam widths.
      jobs: see `CtcDecoder.decode_many`.
    """
    utterances = list(log_probs.values())
    frames = sum(map(len, utterances))
    # Search one frame first, so that the time of the first width does not include compilation.
    decoder.decode(utterances[0][:1])
    for width in widths:
        wider_decoder = decoder.widened(width)
        begin = perf_counter()
        texts = [nbest[0].text for nbest in wider_decoder.decode_many(utterances, jobs)]
        seconds = perf_counter() - begin
        rates = error_rates(references, dict(zip(log_probs, texts, strict=True)))
        # Seconds of all threads over frames and prefixes: constant if the search is linear in both.
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
    """Run `sweep`, storing each row as it is finished.

    After an interruption it continues with the missing widths. It begins again if the split has
    changed, or the number of jobs, since the seconds depend on it.

    Args:
      decoder, log_probs, references, widths, jobs: see `sweep`.
      split: the test set's name.
      out: the JSON file to write: `split`, `jobs` and `rows`.

    Raises:
      BenchRunError: the file cannot be read.
    """
    rows = _stored_rows(out, split, jobs)
    done = {row.width for row in rows}
    missing = [width for width in widths if width not in done]
    for row in sweep(decoder, log_probs, references, missing, jobs):
        rows.append(row)
        report = {"split": split, "jobs": jobs, "rows": [asdict(row) for row in rows]}
        write_atomically(out, json.dumps(report, indent=1) + "\n")
    return rows


def _stored_rows(path: Path, split: str, jobs: int) -> list[Row]:
    """Return the rows that an earlier sweep with the same split and jobs stored."""
    if not os.path.lexists(path):
        return []
    with reading(path, BenchRunError, "remove it to sweep again", "is not a sweep"):
        report = read_json(path, {"split": str, "jobs": int, "rows": [{str: Any}]})
        same = (report["split"], report["jobs"]) == (split, jobs)
        return [from_plain(Row, row) for row in report["rows"] if same]


@dataclass(frozen=True)
class Task:
    """A test set and its decoder."""

    decoder: WordsDecoder
    log_probs: Posteriors
    references: dict[str, str]
    split: str

    @classmethod
    def of_run(cls, run: Path, split: str | None, config: WordsConfig) -> "Task":
        """Read units, dictionary, language model and posteriors of a finished CTC run.

        The language model weights are those tuned in the run, if there are any.

        Args:
          run: the run directory.
          split: one of the decoded splits; by default the first by name.
          config: settings of the search.

        Raises:
          BenchRunError: the run has no posteriors of that split.
        """
        splits = sorted(path.parent.name for path in run.glob("posteriors/*/posteriors.json"))
        if not splits or split not in (None, *splits):
            raise BenchRunError(
                f"{run} has no posteriors{f' of {split}' if split else ''} (splits with posteriors:"
                f" {', '.join(splits) or 'none'}); run the recipe's decoding stage first"
            )
        split = split or splits[0]
        # Use the run's language model weights, so that only the width varies.
        tuned = sorted(run.glob("decode/ctc/words+*/tuned.json"))
        if tuned:
            tuned_weights = json.loads(tuned[0].read_text(encoding="utf-8"))
            weights = {name: tuned_weights[name] for name in ("lm_weight", "word_bonus")}
            config = replace(config, **weights)
        words = (run / "words.txt").read_text(encoding="utf-8").split()
        lm = None if config.mode == "words" else read_arpa(run / "lm" / "lm.arpa")
        posteriors = Posteriors(run / "posteriors" / split)
        excluded = run / "check" / "excluded.tsv"
        cuts = read_cuts(run / "data" / f"{split}.jsonl", excluded if excluded.exists() else None)
        return cls(
            WordsDecoder(load_units(run / "units"), words, lm, config),
            posteriors,
            {cut.id: text_of(cut) for cut in cuts},
            split,
        )


def sweep_run(
    run: Path,
    split: str | None = None,
    mode: str = "forecast",
    widths: Sequence[int] = WIDTHS,
    jobs: int = 1,
    json_file: Path | None = None,
) -> list[Row]:
    """Decode a split of a finished CTC run at several widths, and print a table.

    Args:
      run, split: see `Task.of_run`.
      mode: how the language model is used, see `WordsConfig`.
      widths, jobs: see `sweep`.
      json_file: a file to write the rows to as well.

    Raises:
      ToolkitError: the run has no posteriors, or one of its files cannot be read.
    """
    from rich.console import Console

    task = Task.of_run(run, split, WordsConfig(mode=mode))
    rows = [*sweep(task.decoder, task.log_probs, task.references, widths, jobs)]
    Console().print(table(rows, f"{task.split}, {len(task.references)} utterances, {mode}"))
    if json_file is not None:
        report = {"split": task.split, "mode": mode, "jobs": jobs} | {
            "rows": [asdict(row) for row in rows],
            "machine": machine(),
            "versions": versions(),
        }
        write_atomically(json_file, json.dumps(report, indent=1) + "\n")
    return rows


def table(rows: Sequence[Row], title: str) -> Any:  # rich's, which is imported late
    """Return the rows as a table for a rich console, followed by the paper's."""
    from rich.table import Table

    paper = published("A31")
    table_of_widths = Table(
        title=f"Beam width: {title}",
        caption=f"{PUBLISHED_MARK}: {paper.title}; {paper.source}, {paper.place}",
        caption_justify="left",
    )
    for name in ("width", "seconds", "WER %", "CER %", "usual CER %", "us / frame / width"):
        table_of_widths.add_column(name, justify="right")
    for row in rows:
        table_of_widths.add_row(
            str(row.width), f"{row.seconds:.2f}", f"{row.wer:.2f}", f"{row.cer:.3f}",
            f"{row.cer_usual:.3f}", f"{row.microseconds:.2f}",
        )  # fmt: skip
    table_of_widths.add_section()
    for width, seconds, wer, cer in paper.rows:
        table_of_widths.add_row(
            f"{width} {PUBLISHED_MARK}", f"{seconds:g}", f"{wer:.2f}", f"{cer:.3f}", "", ""
        )
    return table_of_widths
