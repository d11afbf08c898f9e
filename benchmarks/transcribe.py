"""Offline and streaming recognition: real-time factors and latency."""

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, Any

import click

from benchmarks.run import Case, Table, compare
from toolkit.config.click_types import FILE

if TYPE_CHECKING:
    from toolkit.decode.stream import Recogniser

PIECES = (0.01, 0.1, 0.16, 1.0)
"""Seconds of audio per piece of a stream."""


@click.command("transcribe")
@click.option("--model", type=FILE, required=True, help="Model bundle that can recognise streams.")
@click.option(
    "--repeats", type=click.IntRange(1), default=3, show_default=True, help="Timed rounds."
)
@click.argument("audio", nargs=-1, required=True, type=FILE)
def command(model: Path, repeats: int, audio: tuple[Path, ...]) -> None:
    """Measure real-time factors and latency on one core.

    AUDIO files are recognised as a whole, and as streams in pieces of several sizes. The recognised
    texts should always be the same. Latencies apply to live audio from a microphone: see
    `toolkit transcribe --help`.

    \b
    Example:
      python -m benchmarks transcribe --model exp/demo/final a.wav b.wav
    """
    benchmark(model, audio, repeats).print()


def benchmark(model: Path, audio: Sequence[Path], repeats: int = 3) -> Table:
    """Compare whole recordings with streams: seconds of audio per second of processor time."""
    from toolkit.decode.bundle import Bundle
    from toolkit.decode.recogniser import load_recogniser
    from toolkit.features.audio import load_audio
    from toolkit.processes.devices import one_thread

    with one_thread():
        recogniser = load_recogniser(Bundle(model).choose("stream"))
        recogniser.warm_up()  # compiles the search's kernels
        rate = recogniser.sampling_rate
        samples = [load_audio(path, rate) for path in audio]
        seconds = sum(map(len, samples)) / rate
        texts: dict[str, list[str]] = {}
        notes: dict[float, str] = {}

        def whole() -> float:
            texts["whole"] = [recogniser.recognise(x) for x in samples]
            return seconds

        def stream(piece: float) -> float:
            name = f"stream, pieces of {piece:g} s"
            texts[name], notes[piece] = _streamed(recogniser, samples, round(piece * rate))
            return seconds

        cases = [Case("whole", whole)]
        for piece in PIECES:
            cases.append(Case(f"stream, pieces of {piece:g} s", lambda piece=piece: stream(piece)))
        title = f"{len(audio)} recordings, {seconds:.0f} s"
        table = compare(cases, "s of audio", "whole", repeats, title, clock=process_time)
    different = [
        f"{sum(a != b for a, b in zip(text, texts['whole'], strict=True))} of {len(audio)}"
        for name, text in texts.items()
        if name != "whole"
    ]
    # Real-time factor: processor seconds per second of audio, the inverse of the rate.
    factors = "; ".join(f"{row.name} {1 / row.rate:.4f}" for row in table.rows)
    return table.with_notes(
        f"Real-time factors: {factors}.",
        *(f"Pieces of {piece:g} s: {note}" for piece, note in notes.items()),
        f"Final texts that differ from those of whole recordings: {', '.join(different)}.",
    )


def _streamed(recogniser: "Recogniser", samples: Iterable[Any], size: int) -> tuple[list[str], str]:
    """Return the final text of each recording, and a note on the latency."""
    from toolkit.decode.stream import Latency, recognise_stream

    texts, firsts, finals = [], [], []
    for x in samples:
        latency = Latency()
        pieces = (x[begin : begin + size] for begin in range(0, len(x), size))
        # Only the final result is scored; partial results matter for the latency.
        *_, last = recognise_stream(pieces, recogniser.stream(), process_time, latency)
        texts.append(last.text)
        finals.append(latency.final)
        firsts += [] if latency.first is None else [latency.first]
    note = f"the last word {statistics.median(finals):.3f} s after the end (median)"
    if firsts:
        first, worst = statistics.median(firsts), max(firsts)
        note = f"first words {first:.2f} s after speech began (median; at most {worst:.2f}), {note}"
    return texts, note + "."
