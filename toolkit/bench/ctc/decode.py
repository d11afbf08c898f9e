"""CTC decoding with a dictionary of 50,000 words: ours beside flashlight's lexicon decoder."""

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

from toolkit.bench.ctc.material import FRAMES, CtcMaterial
from toolkit.bench.instruments.harness import Case, compare
from toolkit.bench.peers.flashlight_decoder import FlashlightDecoder
from toolkit.bench.peers.peer import PeerUnavailableError
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
OURS, THEIRS = "ours", "flashlight"


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
    """Of its texts, mean per utterance: natural logarithm of the sum over all alignments of the
    text, with language model and bonus, computed the same way for all."""
    wer: float
    """In percent."""


def measure(
    material: CtcMaterial, modes: Sequence[str], widths: Sequence[int], rounds: int, folder: Path
) -> tuple[list[Row], str | None]:
    """Decode everything in turns.

    Args:
      material: what is decoded.
      modes: of the dictionary decoder.
      widths: of the beam.
      rounds: timed repetitions.
      folder: for flashlight's files.

    Returns:
      The rows, ours before flashlight's, and why there are none of flashlight.
    """
    arpa = folder / "lm.arpa"
    write_arpa(material.lm, arpa)
    ngrams = Ngrams.of(material.lm, material.dictionary.words)
    rows, missing = [], None
    for mode in modes:
        for width in widths:
            config = WordsConfig(width, mode, LM_WEIGHT, WORD_BONUS, MARGIN)
            ours = WordsDecoder(material.units, material.dictionary, ngrams, config)
            sides = {OURS: lambda x, ours=ours: ours.decode(x)[0].text}
            try:
                theirs = FlashlightDecoder(
                    material.dictionary, material.units, folder,
                    None if mode == "words" else arpa, width, MARGIN, LM_WEIGHT, WORD_BONUS,
                )  # fmt: skip
                sides[THEIRS] = theirs.text
            except PeerUnavailableError as error:
                missing = str(error)
            rows += _compare(material, mode, width, rounds, sides)
    return rows, missing


def _compare(
    material: CtcMaterial,
    mode: str,
    width: int,
    rounds: int,
    sides: dict[str, Callable[[np.ndarray], str]],
) -> list[Row]:
    found: dict[str, list[str]] = {}

    def case(name: str) -> Case:
        def run() -> float:
            found[name] = [sides[name](x) for x in material.posteriors]
            return float(len(material.posteriors) * FRAMES * width)

        return Case(name, run)

    table = compare(
        [case(name) for name in sides], "frames x width", OURS, rounds, clock=process_time
    )
    references = {str(i): text for i, text in enumerate(material.texts)}
    return [
        Row(
            mode,
            name,
            width,
            1e6 / table.row(name).rate,
            float(np.mean([text_score(material, mode, i, t) for i, t in enumerate(texts)])),
            score(references, {str(i): text for i, text in enumerate(texts)}).percent,
        )
        for name, texts in found.items()
    ]


def text_score(material: CtcMaterial, mode: str, utterance: int, text: str) -> float:
    """The exact score of a text: all its alignments, with and without a space at the end."""
    log_probs = torch.from_numpy(material.posteriors[utterance]).double()[:, None]
    labels, total = material.units.encode(text), -math.inf
    for target in (labels, [*labels, material.units.space]):
        loss = torch.nn.functional.ctc_loss(
            log_probs,
            torch.tensor([target], dtype=torch.int64),
            torch.tensor([len(log_probs)]),
            torch.tensor([len(target)]),
            blank=material.units.blank,
            reduction="sum",
        )
        total = float(np.logaddexp(total, -loss.item()))
    words = text.split()
    total += WORD_BONUS * len(words)
    if mode != "words":
        total += LM_WEIGHT * math.log(10.0) * material.lm.logprob(words)
    return total


def verdicts(rows: Sequence[Row]) -> list[str]:
    """What the rows say about the target and about flashlight."""
    found = []
    for mode in dict.fromkeys(row.mode for row in rows):
        mine = {(r.decoder, r.width): r for r in rows if r.mode == mode}
        ours = mine.get((OURS, TARGET_WIDTH))
        if ours is not None:
            met = "met" if ours.microseconds <= TARGET else "missed"
            found.append(
                f"{mode}: {ours.microseconds:.2f} us per frame and beam at width {TARGET_WIDTH}"
                f" (target: at most {TARGET}, {met})"
            )
        for width in sorted({r.width for r in mine.values()}):
            if (THEIRS, width) in mine:
                ours, theirs = mine[OURS, width], mine[THEIRS, width]
                better = "at least as good" if ours.score >= theirs.score - 1e-6 else "worse"
                found.append(
                    f"{mode}, width {width}: {ours.microseconds / theirs.microseconds:.2f} of"
                    f" flashlight's time, scores {better} ({ours.score:.2f}, {theirs.score:.2f})"
                )
    return found


@click.command("ctc-decode")
@click.option("--words", default=50_000, show_default=True, help="Size of the dictionary.")
@click.option("--utterances", default=6, show_default=True, help=f"Each of {FRAMES} frames.")
@click.option(
    "--width", "widths", type=int, multiple=True, help="Beam widths instead of 1 ... 512."
)
@click.option("--rounds", default=3, show_default=True, help="Timed repetitions.")
@click.option("--json", "json_file", type=FILE, help="Also write the rows to this file.")
def command(
    words: int, utterances: int, widths: tuple[int, ...], rounds: int, json_file: Path | None
) -> None:
    """Decode CTC posteriors with a dictionary: ours beside flashlight's lexicon decoder.

    \b
    Example:
      toolkit bench ctc-decode --width 8 --width 64
    """
    from rich.console import Console
    from rich.table import Table

    with one_thread(), tempfile.TemporaryDirectory() as folder:
        material = CtcMaterial.make(words, utterances)
        modes = ("words", "forecast")
        rows, missing = measure(material, modes, widths or WIDTHS, rounds, Path(folder))
    table = Table(title=f"CTC decoding, {len(material.dictionary.words)} words, one core")
    table.add_column("language model")
    table.add_column("decoder")
    for name in ("width", "us / frame / width", "score", "WER %"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            "none" if row.mode == "words" else "bigrams", row.decoder, str(row.width),
            f"{row.microseconds:.2f}", f"{row.score:.2f}", f"{row.wer:.1f}",
        )  # fmt: skip
    notes = verdicts(rows) + ([missing] if missing else [])
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
