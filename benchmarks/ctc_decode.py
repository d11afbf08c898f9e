"""CTC decoding with a dictionary: the toolkit's decoder, flashlight's and pyctcdecode."""

import json
import math
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import process_time

import click
import numpy as np
import torch

from benchmarks.peers import (
    FLASHLIGHT_TEXT,
    PYCTCDECODE,
    CtcDecoderProcess,
    FlashlightDecoder,
    PeerUnavailableError,
)
from benchmarks.run import Case, compare
from benchmarks.synthetic import FRAMES, SyntheticCtcTask
from toolkit.config.click_types import JSON_OUT
from toolkit.decode.config import WordsConfig
from toolkit.decode.ctc.dictionary import Ngrams
from toolkit.decode.ctc.search import WordsDecoder
from toolkit.environment import machine, versions
from toolkit.lang.arpa import write_arpa
from toolkit.processes.devices import one_thread
from toolkit.score.wer import score
from toolkit.storage.files import write_atomically

WIDTHS = (1, 8, 64, 256, 512)
LM_WEIGHT, WORD_BONUS, MARGIN = 0.8, 0.5, 50.0
TARGET_WIDTH, TARGET = 256, 2.2  # microseconds per frame and prefix of the beam
OURS, FLASHLIGHT = "ours", "flashlight"
EQUAL = 1e-3
"""Difference of mean scores, in natural log units, up to which they count as equal."""


@dataclass(frozen=True)
class Row:
    """One decoder at one width."""

    mode: str
    """`words`: no language model. `forecast`: with bigrams; the other decoders read the same
    bigrams with KenLM, and flashlight smears them over its trie."""
    decoder: str
    """`ours`, or another: `flashlight` is torchaudio's copy, `flashlight-text` the package."""
    width: int
    microseconds: float
    """Processor time per frame and prefix of the beam, median over the rounds."""
    score: float
    """Mean score of the decoder's texts: natural logarithm of the sum over all alignments of a
    text, with language model and word bonus. It is computed in the same way for all decoders."""
    wer: float
    """Word error rate in percent."""


def measure(
    task: SyntheticCtcTask, modes: Sequence[str], widths: Sequence[int], rounds: int, folder: Path
) -> tuple[list[Row], list[str]]:
    """Decode the task with all decoders in turn.

    Args:
      task: what is decoded.
      modes: modes of the dictionary decoder, see `WordsConfig`.
      widths: beam widths.
      rounds: timed repetitions.
      folder: folder for the other decoders' files.

    Returns:
      The rows, ours before the others', and the reasons why some decoders are not available.
    """
    arpa = folder / "lm.arpa"
    write_arpa(task.lm, arpa)
    ngrams = Ngrams.of(task.lm, task.dictionary.words)
    rows, missing, processes = [], [], {}
    with ExitStack() as running:
        for name in (FLASHLIGHT_TEXT, PYCTCDECODE):
            try:
                processes[name] = running.enter_context(
                    CtcDecoderProcess(
                        name, task.dictionary, task.units, task.lm, task.posteriors, folder
                    )
                )
            except PeerUnavailableError as error:
                missing.append(str(error))
        for mode in modes:
            for width in widths:
                config = WordsConfig(width, mode, LM_WEIGHT, WORD_BONUS, MARGIN)
                decoder = WordsDecoder(task.units, task.dictionary, ngrams, config)
                # A decoder is made for each mode and width; only decoding is timed.
                decoders = {
                    OURS: lambda decoder=decoder: [
                        decoder.decode(x)[0].text for x in task.posteriors
                    ]
                }
                try:
                    flashlight = FlashlightDecoder(
                        task.dictionary, task.units, folder,
                        None if mode == "words" else arpa, width, MARGIN, LM_WEIGHT, WORD_BONUS,
                    )  # fmt: skip
                    decoders[FLASHLIGHT] = lambda f=flashlight: list(map(f.text, task.posteriors))
                except PeerUnavailableError as error:
                    missing.append(str(error))
                for name, process in processes.items():
                    if mode != "words" or name != PYCTCDECODE:
                        decoders[name] = partial(
                            process.decode, width, MARGIN, LM_WEIGHT, WORD_BONUS, mode != "words"
                        )

                # Processor time of this process plus that of the decoders' own processes.
                def clock() -> float:
                    elsewhere = sum(process.processor_seconds for process in processes.values())
                    return process_time() + elsewhere

                rows += _compare(task, mode, width, rounds, decoders, clock)
    return rows, list(dict.fromkeys(missing))


def _compare(
    task: SyntheticCtcTask,
    mode: str,
    width: int,
    rounds: int,
    decoders: dict[str, Callable[[], list[str]]],
    clock: Callable[[], float],
) -> list[Row]:
    """Measure decoders of the same width in turn, and score their texts."""
    texts_by_case: dict[str, list[str]] = {}

    def case(name: str) -> Case:
        def run() -> float:
            texts_by_case[name] = decoders[name]()
            # The search's work grows with frames times beam width.
            return float(len(task.posteriors) * FRAMES * width)

        return Case(name, run)

    table = compare([case(name) for name in decoders], "frames x width", OURS, rounds, clock=clock)
    references = {str(i): text for i, text in enumerate(task.texts)}
    return [
        Row(
            mode,
            name,
            width,
            1e6 / table.row(name).rate,
            float(np.mean([text_score(task, mode, i, t) for i, t in enumerate(texts)])),
            score(references, {str(i): text for i, text in enumerate(texts)}).percent,
        )
        for name, texts in texts_by_case.items()
    ]


def text_score(task: SyntheticCtcTask, mode: str, utterance: int, text: str) -> float:
    """Return a text's exact score: the sum over alignments, with and without a final space.

    Args:
      task: the task with the posteriors and the language model.
      mode: `words`, without the language model, or another mode.
      utterance: index of the utterance whose posteriors are used.
      text: the text to score.
    """
    log_probs = torch.from_numpy(task.posteriors[utterance]).double()[:, None]
    labels, total = task.units.encode(text), -math.inf
    for target in (labels, [*labels, task.units.space]):
        loss = torch.nn.functional.ctc_loss(
            log_probs,
            torch.tensor([target], dtype=torch.int64),
            torch.tensor([len(log_probs)]),
            torch.tensor([len(target)]),
            blank=task.units.blank,
            reduction="sum",
        )
        total = float(np.logaddexp(total, -loss.item()))
    words = text.split()
    total += WORD_BONUS * len(words)
    if mode != "words":
        total += LM_WEIGHT * math.log(10.0) * task.lm.logprob(words)
    return total


def compare_with_others(rows: Sequence[Row]) -> list[str]:
    """Compare our decoder with its target, and with the others at equal width and equal score."""
    remarks = []
    for mode in dict.fromkeys(row.mode for row in rows):
        rows_by_width = {row.width: row for row in rows if (row.mode, row.decoder) == (mode, OURS)}
        if TARGET_WIDTH in rows_by_width:
            met = "met" if rows_by_width[TARGET_WIDTH].microseconds <= TARGET else "missed"
            remarks.append(
                f"{mode}: {rows_by_width[TARGET_WIDTH].microseconds:.2f} us per frame and prefix "
                f"at width {TARGET_WIDTH} (target: at most {TARGET}, {met})"
            )
        peer_rows = [row for row in rows if row.mode == mode and row.decoder != OURS]
        for peer_row in sorted(peer_rows, key=lambda row: (row.decoder, row.width)):
            toolkit_row = rows_by_width[peer_row.width]
            remarks.append(
                f"{mode}, width {peer_row.width}: "
                f"{toolkit_row.microseconds / peer_row.microseconds:.2f} of {peer_row.decoder}'s "
                f"time (scores {toolkit_row.score:.2f}, {peer_row.score:.2f});"
                f" {_at_equal_score(rows_by_width, peer_row)}"
            )
    return remarks


def _at_equal_score(rows_by_width: dict[int, Row], peer_row: Row) -> str:
    """Compare another decoder with ours at the narrowest width that scores at least as well."""
    enough = [width for width, row in rows_by_width.items() if row.score >= peer_row.score - EQUAL]
    if not enough:
        return "no width of ours scores as well"
    width = min(enough)
    ratio = rows_by_width[width].microseconds * width / (peer_row.microseconds * peer_row.width)
    return f"at equal score, with our width {width}, {ratio:.2f}"


@click.command("ctc-decode")
@click.option(
    "--words",
    type=click.IntRange(1),
    default=50_000,
    show_default=True,
    help="Size of the dictionary.",
)
@click.option(
    "--utterances",
    type=click.IntRange(1),
    default=6,
    show_default=True,
    help=f"Number of utterances, of {FRAMES} frames each.",
)
@click.option(
    "--width",
    "widths",
    type=click.IntRange(1),
    multiple=True,
    help="Beam width; may be repeated. Default: 1, 8, 64, 256 and 512.",
)
@click.option(
    "--rounds", type=click.IntRange(1), default=3, show_default=True, help="Timed repetitions."
)
@click.option("--json", "json_file", type=JSON_OUT, help="Also write the table to this file.")
def command(
    words: int, utterances: int, widths: tuple[int, ...], rounds: int, json_file: Path | None
) -> None:
    """Compare the toolkit's CTC decoder with other decoders that use a dictionary.

    The other decoders are flashlight's lexicon decoder (in torchaudio, or as flashlight-text) and
    pyctcdecode, if they are installed. flashlight-text and pyctcdecode may be installed in another
    environment: set the variable CTC_DECODERS_PYTHON to the Python of this environment. pyctcdecode
    cannot use a dictionary without a language model.

    \b
    Example:
      python -m benchmarks ctc-decode --width 8 --width 64
    """
    from rich.console import Console
    from rich.table import Table

    with one_thread(), tempfile.TemporaryDirectory() as folder:
        task = SyntheticCtcTask.make(words, utterances)
        modes = ("words", "forecast")
        rows, missing = measure(task, modes, widths or WIDTHS, rounds, Path(folder))
    table = Table(title=f"CTC decoding, {len(task.dictionary.words)} words, one core")
    table.add_column("language model")
    table.add_column("decoder")
    for name in ("width", "us / frame / width", "score", "WER %"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            "none" if row.mode == "words" else "bigrams", row.decoder, str(row.width),
            f"{row.microseconds:.2f}", f"{row.score:.2f}", f"{row.wer:.1f}",
        )  # fmt: skip
    notes = compare_with_others(rows) + missing
    console = Console()
    console.print(table)
    for note in notes:
        console.print(note)
    if json_file is not None:
        report = {
            "rows": [asdict(row) for row in rows],
            "notes": notes,
            "machine": machine(),
            "versions": versions(),
        }
        write_atomically(json_file, json.dumps(report, indent=1) + "\n")
