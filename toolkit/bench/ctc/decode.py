"""CTC decoding with a dictionary: the toolkit's decoder and flashlight's lexicon decoder."""

import json
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import process_time

import click
import numpy as np
import torch

from toolkit.bench.ctc.synthetic_task import FRAMES, SyntheticCtcTask
from toolkit.bench.instruments.harness import Case, compare
from toolkit.bench.peers.flashlight_decoder import FlashlightDecoder
from toolkit.bench.peers.process import PeerUnavailableError
from toolkit.config.parameters import FILE
from toolkit.decode.ctc.ngrams import Ngrams
from toolkit.decode.ctc.words import WordsConfig, WordsDecoder
from toolkit.environment import machine, versions
from toolkit.lang.ngram.arpa import write_arpa
from toolkit.processes.threads import one_thread
from toolkit.score.wer import score
from toolkit.storage.files import write_atomically

WIDTHS = (1, 8, 64, 256, 512)
LM_WEIGHT, WORD_BONUS, MARGIN = 0.8, 0.5, 50.0
TARGET_WIDTH, TARGET = 256, 2.2  # microseconds per frame and prefix of the beam
OURS, FLASHLIGHT = "ours", "flashlight"


@dataclass(frozen=True)
class Row:
    """One decoder at one width."""

    mode: str
    """`words`, or `forecast` (flashlight: the same bigrams by KenLM, smeared over its trie)."""
    decoder: str
    width: int
    microseconds: float
    """Processor time per frame and prefix of the beam, median over the rounds."""
    score: float
    """Mean score of its texts: natural logarithm of the sum over all alignments of a text, with
    language model and word bonus, computed in the same way for both decoders."""
    wer: float
    """Word error rate in percent."""


def measure(
    task: SyntheticCtcTask, modes: Sequence[str], widths: Sequence[int], rounds: int, folder: Path
) -> tuple[list[Row], str | None]:
    """Decode the task with both decoders in turns.

    Args:
      task: what is decoded.
      modes: modes of the dictionary decoder, see `WordsConfig`.
      widths: beam widths.
      rounds: timed repetitions.
      folder: folder for flashlight's files.

    Returns:
      The rows, ours before flashlight's, and the reason if flashlight is not available.
    """
    arpa = folder / "lm.arpa"
    write_arpa(task.lm, arpa)
    ngrams = Ngrams.of(task.lm, task.dictionary.words)
    rows, missing = [], None
    for mode in modes:
        for width in widths:
            config = WordsConfig(width, mode, LM_WEIGHT, WORD_BONUS, MARGIN)
            ours = WordsDecoder(task.units, task.dictionary, ngrams, config)
            decoders = {OURS: lambda x, ours=ours: ours.decode(x)[0].text}
            try:
                flashlight = FlashlightDecoder(
                    task.dictionary, task.units, folder,
                    None if mode == "words" else arpa, width, MARGIN, LM_WEIGHT, WORD_BONUS,
                )  # fmt: skip
                decoders[FLASHLIGHT] = flashlight.text
            except PeerUnavailableError as error:
                missing = str(error)
            rows += _compare(task, mode, width, rounds, decoders)
    return rows, missing


def _compare(
    task: SyntheticCtcTask,
    mode: str,
    width: int,
    rounds: int,
    decoders: dict[str, Callable[[np.ndarray], str]],
) -> list[Row]:
    found: dict[str, list[str]] = {}

    def case(name: str) -> Case:
        def run() -> float:
            found[name] = [decoders[name](x) for x in task.posteriors]
            return float(len(task.posteriors) * FRAMES * width)

        return Case(name, run)

    table = compare(
        [case(name) for name in decoders], "frames x width", OURS, rounds, clock=process_time
    )
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
        for name, texts in found.items()
    ]


def text_score(task: SyntheticCtcTask, mode: str, utterance: int, text: str) -> float:
    """Return a text's exact score: the sum over alignments, with and without a final space."""
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


def compare_with_flashlight(rows: Sequence[Row]) -> list[str]:
    """Compare the rows with the target and with flashlight."""
    found = []
    for mode in dict.fromkeys(row.mode for row in rows):
        by_decoder = {(r.decoder, r.width): r for r in rows if r.mode == mode}
        ours = by_decoder.get((OURS, TARGET_WIDTH))
        if ours is not None:
            met = "met" if ours.microseconds <= TARGET else "missed"
            found.append(
                f"{mode}: {ours.microseconds:.2f} us per frame and prefix at width {TARGET_WIDTH}"
                f" (target: at most {TARGET}, {met})"
            )
        for width in sorted({r.width for r in by_decoder.values()}):
            if (FLASHLIGHT, width) in by_decoder:
                ours, flashlight = by_decoder[OURS, width], by_decoder[FLASHLIGHT, width]
                better = "at least as good" if ours.score >= flashlight.score - 1e-6 else "worse"
                found.append(
                    f"{mode}, width {width}: {ours.microseconds / flashlight.microseconds:.2f} of"
                    f" flashlight's time, scores {better} ({ours.score:.2f},"
                    f" {flashlight.score:.2f})"
                )
    return found


@click.command("ctc-decode")
@click.option("--words", default=50_000, show_default=True, help="Size of the dictionary.")
@click.option(
    "--utterances",
    default=6,
    show_default=True,
    help=f"Number of utterances, of {FRAMES} frames each.",
)
@click.option(
    "--width",
    "widths",
    type=int,
    multiple=True,
    help="Beam width, may be repeated; by default 1, 8, 64, 256 and 512.",
)
@click.option("--rounds", default=3, show_default=True, help="Timed repetitions.")
@click.option("--json", "json_file", type=FILE, help="Also write the rows to this file.")
def command(
    words: int, utterances: int, widths: tuple[int, ...], rounds: int, json_file: Path | None
) -> None:
    """Decode CTC posteriors with a dictionary: the toolkit's decoder and flashlight's.

    \b
    Example:
      toolkit bench ctc-decode --width 8 --width 64
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
    notes = compare_with_flashlight(rows) + ([missing] if missing else [])
    console = Console()
    console.print(table)
    for note in notes:
        console.print(note)
    if json_file is not None:
        plain = {
            "rows": [asdict(row) for row in rows],
            "notes": notes,
            "machine": machine(),
            "versions": versions(),
        }
        write_atomically(json_file, json.dumps(plain, indent=1) + "\n")
