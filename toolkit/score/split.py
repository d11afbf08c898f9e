"""Scoring of a decoded split: its row of results and its reports."""

import logging
from collections.abc import Mapping
from pathlib import Path

from toolkit.score.report import write_report
from toolkit.score.results import Result
from toolkit.score.wer import score
from toolkit.storage.files import write_atomically

logger = logging.getLogger(__name__)


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
    out.mkdir(parents=True, exist_ok=True)
    lines = [f"{u} {h}".rstrip() + "\n" for u, h in hypotheses.items()]
    write_atomically(out / "text", "".join(lines))
    by_words = score(references, hypotheses, speakers=speakers)
    by_characters = score(references, hypotheses, unit="char")
    write_report(by_words, out / "report.txt")
    write_atomically(out / "wer.txt", by_words.summary(interval=True) + "\n")
    logger.info("%s %s %s: %s", system, split, lm, by_words.summary().splitlines()[0])
    named = {"system": system, "split": split, "lm": lm, "rtf": rtf, "command": command}
    return Result.of(by_words, by_characters, **named)
