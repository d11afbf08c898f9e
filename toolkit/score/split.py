"""Scoring of a decoded split: its row of results and its reports."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolkit.score.report import write_report
from toolkit.score.results import Result
from toolkit.score.wer import score
from toolkit.storage.files import write_atomically

logger = logging.getLogger(__name__)


def can_be_scored(references: Mapping[str, str], split: str) -> bool:
    """Whether any reference of a split has a word; a warning says that none has."""
    words = any(text.split() for text in references.values())
    if not words:
        logger.warning("%s has no error rate: none of its transcripts has a word", split)
    return words


def write_texts(hypotheses: Mapping[str, str], out: Path) -> None:
    """Write `text`, a line for each utterance, into a folder that is made."""
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
