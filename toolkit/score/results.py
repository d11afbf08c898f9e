"""Rows of results.json, and the scoring of a decoded split."""

import json
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.config.fields import from_plain
from toolkit.errors import ToolkitError
from toolkit.score.report import write_report
from toolkit.score.wer import Score, score
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import read_json, reading

if TYPE_CHECKING:
    from rich.table import Table


class ResultsError(ToolkitError):
    """A results file that cannot be read."""


@dataclass(frozen=True)
class Result:
    """One row of results. Its key is (system, split, lm); a newer row replaces an older one."""

    system: str
    """Name of the acoustic model, such as mono, lstm_ce, lstm_smbr."""
    split: str
    """Name of the decoded split, such as dev-mini."""
    lm: str
    """Name of the language model, such as 3gram."""
    wer: float
    """Word error rate in percent, two decimals."""
    cer: float
    """Character error rate in percent, two decimals; spaces do not count."""
    insertions: int
    """Number of inserted words (`ins` in the file)."""
    deletions: int
    """Number of deleted words (`del` in the file)."""
    substitutions: int
    """Number of substituted words (`sub` in the file)."""
    ref_words: int
    """Number of reference words."""
    rtf: float
    """Real-time factor: processor seconds of decoding per second of audio, four decimals."""
    command: str
    """The command that gave the result."""
    wer_low: float | None = None
    """Lower end of the 95 % confidence interval of `wer`, two decimals; None when unknown. If there
    is no error, resamples have no variance: the interval then ends at 3 errors in `ref_words`, as
    if errors were independent."""
    wer_high: float | None = None
    """Upper end of that interval."""
    wer_unknown_speaker: float | None = None
    """WER in percent with every utterance recognised alone, two decimals; None if it was not
    measured. For `wer`, the speaker's other utterances were used too."""

    @classmethod
    def of(
        cls,
        words: Score,
        characters: Score,
        *,
        system: str,
        split: str,
        lm: str,
        rtf: float,
        command: str,
    ) -> "Result":
        """Build a row from the word and the character score of one decode."""
        interval, most = words.interval, min(100.0, 300 / max(words.ref_units, 1))
        return cls(
            system=system,
            split=split,
            lm=lm,
            wer=round(words.percent, 2),
            cer=round(characters.percent, 2),
            insertions=words.insertions,
            deletions=words.deletions,
            substitutions=words.substitutions,
            ref_words=words.ref_units,
            rtf=round(rtf, 4),
            command=command,
            wer_low=round(interval.low, 2) if interval else None,
            wer_high=round(interval.high if words.errors else most, 2) if interval else None,
        )

    @property
    def key(self) -> tuple[str, str, str]:
        """The row's key: (system, split, lm)."""
        return self.system, self.split, self.lm

    def to_json(self) -> dict[str, Any]:
        """Return the row as it is written to the file."""
        row = {name: getattr(self, field) for name, field in _FIELDS.items()}
        return {name: value for name, value in row.items() if value is not None}

    @property
    def interval(self) -> str:
        """The 95 % confidence interval of `wer` as text for tables; empty when unknown."""
        has_interval = self.wer_low is not None and self.wer_high is not None
        return f"{self.wer_low:.2f}-{self.wer_high:.2f}" if has_interval else ""

    @property
    def unknown_speaker(self) -> str:
        """`wer_unknown_speaker` as text for tables; empty where it was not measured."""
        wer = self.wer_unknown_speaker
        return "" if wer is None else f"{wer:.2f}"


_SHORT = {"insertions": "ins", "deletions": "del", "substitutions": "sub"}
_FIELDS = {_SHORT.get(field, field): field for field in Result.__dataclass_fields__}


def read_results(path: Path) -> list[Result]:
    """Read the rows of results.json; return none if the file does not exist.

    Raises:
      ResultsError: the file is not a list of rows with the fields of `Result`.
    """
    if not os.path.lexists(path):
        return []
    with reading(path, ResultsError, "move it away and score again", "not a results file"):
        rows = read_json(path, [{str: Any}])
        return [from_plain(Result, {_FIELDS[name]: row[name] for name in row}) for row in rows]


def record_results(path: Path, results: Iterable[Result]) -> list[Result]:
    """Add rows to results.json, replacing those with the same key.

    Rows keep the order in which their keys were first added. The file is written atomically, but
    two processes must not write the same file at the same time.

    Returns:
      All rows of the file.
    """
    rows = {row.key: row for row in read_results(path)}
    rows.update((row.key, row) for row in results)
    write_atomically(
        path,
        json.dumps([row.to_json() for row in rows.values()], indent=1, ensure_ascii=False) + "\n",
    )
    return list(rows.values())


def collect_results(parts: Iterable[Path], path: Path) -> dict[str, float]:
    """Merge the rows of several files; return the best WER in percent by `wer <split>`."""
    best: dict[str, float] = {}
    rows = [row for part in parts for row in read_results(part)]
    for row in record_results(path, rows):
        best[f"wer {row.split}"] = min(row.wer, best.get(f"wer {row.split}", row.wer))
    return best


def results_table(results: Iterable[Result], title: str = "Results") -> "Table":
    """Return a rich table of the rows, the best word error rate of each split in bold."""
    from rich.markup import escape
    from rich.table import Table

    results = list(results)
    best: dict[str, float] = {}
    for row in results:
        best[row.split] = min(row.wer, best.get(row.split, row.wer))
    measured = any(row.wer_unknown_speaker is not None for row in results)
    alone = ["speaker unknown %"] if measured else []
    table = Table(title=escape(title))
    for name in ("system", "split", "LM"):
        table.add_column(name, no_wrap=True)
    for name in ("WER %", *alone, "95 % interval", "CER %", "ins", "del", "sub", "words", "RTF"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in results:
        wer = f"{row.wer:.2f}"
        table.add_row(
            *map(escape, row.key),
            f"[bold]{wer}[/bold]" if row.wer == best[row.split] else wer,
            *([row.unknown_speaker] if measured else []),
            row.interval,
            f"{row.cer:.2f}",
            str(row.insertions),
            str(row.deletions),
            str(row.substitutions),
            str(row.ref_words),
            f"{row.rtf:.4f}",
        )
    return table


def markdown_table(results: Iterable[Result]) -> str:
    """Return a Markdown table of WERs with their intervals.

    It has a row per system and language model, and a column per split. Splits whose WER with
    unknown speakers was measured have a second column. The best WER of each split is in bold.
    """
    results = list(results)
    splits = list(dict.fromkeys(row.split for row in results))
    best = {split: min(row.wer for row in results if row.split == split) for split in splits}
    measured = {row.split for row in results if row.wer_unknown_speaker is not None}
    columns: list[str] = []
    for split in splits:
        columns += [split] + [_alone(split)] * (split in measured)
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for row in results:
        bold = "**" if row.wer == best[row.split] else ""
        interval = f" ({row.interval})" if row.interval else ""
        cells.setdefault((row.system, row.lm), {}).update(
            {
                row.split: f"{bold}{row.wer:.2f}{bold}{interval}",
                _alone(row.split): row.unknown_speaker,
            }
        )
    lines = [["system", "LM", *columns], ["---", "---", *["---:"] * len(columns)]]
    lines += [[*key, *(row.get(name, "") for name in columns)] for key, row in cells.items()]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _alone(split: str) -> str:
    """Return the heading of a split's results with every utterance recognised alone."""
    return f"{split}, speaker unknown"


def print_results(path: Path, title: str = "Results") -> None:
    """Print the table of a results.json to standard output."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = 120  # for log files
    console.print(results_table(read_results(path), title=title))


logger = logging.getLogger(__name__)


def can_be_scored(references: Mapping[str, str], split: str) -> bool:
    """Return whether any reference of a split has a word; warn if none has."""
    words = any(text.split() for text in references.values())
    if not words:
        logger.warning("%s has no error rate: its reference transcripts contain no words", split)
    return words


def write_texts(hypotheses: Mapping[str, str], out: Path) -> None:
    """Write hypotheses as a file `text` in a folder, a line for each utterance."""
    out.mkdir(parents=True, exist_ok=True)
    lines = [f"{u} {h}".rstrip() + "\n" for u, h in hypotheses.items()]
    write_atomically(out / "text", "".join(lines))


def score_split(
    references: Mapping[str, str],
    hypotheses: Mapping[str, str],
    speakers: Mapping[str, str],
    out: Path,
    *,
    system: str,
    split: str,
    lm: str,
    rtf: float,
    command: str,
) -> Result:
    """Score the hypotheses of a split and write reports.

    Args:
      references: transcript by utterance id.
      hypotheses: hypothesis by utterance id.
      speakers: speaker by utterance id.
      out: the folder that gets `text` (hypotheses), `report.txt` (alignments and confusions) and
        `wer.txt`.
      system: name of the system, see `Result`.
      split: name of the split.
      lm: name of the language model.
      rtf: real-time factor of decoding.
      command: the command that gave the result.
    """
    write_texts(hypotheses, out)
    by_words = score(references, hypotheses, speakers=speakers)
    by_characters = score(references, hypotheses, unit="char")
    write_report(by_words, out / "report.txt")
    write_atomically(out / "wer.txt", by_words.summary(interval=True) + "\n")
    logger.info("%s %s %s: %s", system, split, lm, by_words.summary().splitlines()[0])
    named: dict[str, Any] = {
        "system": system,
        "split": split,
        "lm": lm,
        "rtf": rtf,
        "command": command,
    }
    return Result.of(by_words, by_characters, **named)
