"""A CTC bundle's network in float32 and in 8 bits: error rate, speed and size (A20)."""

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import process_time

import click
import torch

from benchmarks.beams import BLOCK
from benchmarks.run import REF, BenchmarkError, Case, compare
from toolkit.config.click_types import FILE
from toolkit.decode.bundle import Bundle, is_ctc
from toolkit.decode.ctc.recogniser import CtcRecogniser
from toolkit.decode.sources import Inputs, Source
from toolkit.models.store import serialized_bytes
from toolkit.processes.devices import one_thread
from toolkit.score.transcripts import read_transcripts
from toolkit.score.wer import Score, score

FLOAT32, INT8 = "float32", "int8"


@dataclass(frozen=True)
class Row:
    """A network's results in one precision."""

    name: str
    score: Score
    """Word errors of the bundle's search."""
    real_time_factor: float
    """Processor time of the network on one core, divided by the duration of the audio."""
    ratio: float
    """Speed of the network divided by that in float32, median over the rounds."""
    megabytes: float
    """Size of the weights."""


@click.command("int8")
@click.option("--model", type=FILE, required=True, help="Bundle, such as exp/ctc-demo/final.")
@REF
@click.option(
    "--rounds", type=click.IntRange(1), default=3, show_default=True, help="Timed rounds."
)
@click.argument("audio", nargs=-1, required=True)
def command(model: Path, ref: Path, rounds: int, audio: tuple[str, ...]) -> None:
    """Recognise audio with a CTC network in float32 and in 8 bits.

    AUDIO takes the same inputs as `toolkit transcribe`. Each recording is treated as a separate
    speaker. Features are computed once. Then the two networks are timed in turn, on one core.

    \b
    Example:
      python -m benchmarks int8 --model exp/ctc-demo/final --ref exp/ctc-demo/data/dev.jsonl \\
        exp/ctc-demo/data/dev.jsonl
    """
    with tempfile.TemporaryDirectory() as temporary, one_thread():
        sources = Inputs().sources(audio, sys.stdin and sys.stdin.buffer, Path(temporary))
        rows = measure(Bundle(model).choose(), sources, read_transcripts(ref).texts, rounds)
    for line in table(rows):
        click.echo(line)


def measure(
    bundle: Path, sources: Sequence[Source], references: dict[str, str], rounds: int = 3
) -> list[Row]:
    """Recognise every utterance with both networks.

    Args:
      bundle: the folder of a CTC system.
      sources: utterances.
      references: transcripts by the sources' names; sources without one are left out.
      rounds: timed repetitions.

    Raises:
      BenchmarkError: the bundle has no CTC network, or no source has a transcript.
    """
    if not is_ctc(bundle):
        raise BenchmarkError(f"{bundle} is not the bundle of a CTC network")
    recognisers = {FLOAT32: CtcRecogniser(bundle), INT8: CtcRecogniser(bundle, int8=True)}
    first = recognisers[FLOAT32]
    rate = first.frontend_config.sampling_rate
    features, seconds = {}, 0.0
    # Features are computed beforehand: only the networks differ, and only they are timed.
    for source in sources:
        samples = torch.cat([torch.zeros(0), *source.blocks(rate, BLOCK)])
        if source.name in references and len(frames := first.frontend(samples)):
            features[source.name] = frames
            seconds += len(samples) / rate
    if not features:
        raise BenchmarkError(
            "no recording has speech and a transcript in the file of --ref: the ids in this file "
            "must be the names of the recordings"
        )

    def scored(name: str) -> float:
        for frames in features.values():
            recognisers[name].scorer.log_probs(frames)
        return seconds

    cases = [Case(name, lambda name=name: scored(name)) for name in recognisers]
    timed = compare(cases, "s of audio", FLOAT32, rounds, clock=process_time)
    # The error rates are those of the whole recogniser, which is not timed.
    chosen_references = {name: references[name] for name in features}
    return [
        Row(
            name,
            score(
                chosen_references,
                {key: recogniser.recognise_features(x).text for key, x in features.items()},
            ),
            1 / timed.row(name).rate,
            timed.row(name).ratio,
            serialized_bytes(recogniser.scorer.model) / 1e6,
        )
        for name, recogniser in recognisers.items()
    ]


def table(rows: Sequence[Row]) -> list[str]:
    """Return a table of both networks, and the number of texts that differ."""
    lines = ["network     WER  errors  real-time factor  speed  megabytes"]
    lines += [
        f"{row.name:8} {row.score.percent:6.2f} {row.score.errors:7d} {row.real_time_factor:17.5f}"
        f" {row.ratio:6.2f} {row.megabytes:10.2f}"
        for row in rows
    ]
    float_row, int8_row = rows
    changed = sum(
        a.hyp_text != b.hyp_text
        for a, b in zip(float_row.score.utterances, int8_row.score.utterances, strict=True)
    )
    return [*lines, f"{changed} of {len(float_row.score.utterances)} texts differ."]
