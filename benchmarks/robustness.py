"""Recognition of altered recordings: digital silence, noise gates, fades, levels, and no speech.

Every utterance is recognised alone, as `toolkit transcribe` recognises a file whose speaker is not
named, and the errors of each alteration are compared with those of the recordings as they are.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path

import click
import numpy as np
import torch
from torch import Tensor

from benchmarks.run import BenchmarkError
from toolkit.config.click_types import FILE
from toolkit.corpus.manifest import read_cuts, text_of
from toolkit.decode.decoded import Transcript
from toolkit.decode.sources import Source
from toolkit.decode.transcribe import transcribe
from toolkit.features.cut_audio import load_cut_audio
from toolkit.processes.devices import one_thread
from toolkit.score.compare import compare
from toolkit.score.wer import Score, score

RATE = 16000
"""Sampling rate of the altered recordings, in Hz."""
LEAD_IN_DB = -60.0
"""Level of a quiet lead-in, in dB below full scale."""
GATE_BELOW = 0.1
"""Threshold of the noise gate, relative to the recording's peak."""
GATE_SECONDS = 0.05
"""Length of the pieces that the gate passes or mutes."""

FADE_SECONDS = 0.2
"""Duration of a fade."""

Alteration = Callable[[np.ndarray, float], np.ndarray]
"""(samples [S], seconds at which a pause between words is widest) -> samples."""


def zeros(seconds: float, where: str) -> Alteration:
    """Return an alteration that inserts digital silence before, after or between the words."""

    def alter(samples: np.ndarray, pause: float) -> np.ndarray:
        position = {"before": 0, "after": len(samples), "between": round(pause * RATE)}[where]
        return np.insert(samples, position, np.zeros(round(seconds * RATE), samples.dtype))

    return alter


def gate(samples: np.ndarray, pause: float) -> np.ndarray:
    """Mute the pieces of 50 ms whose peak is below `GATE_BELOW` of the recording's.

    An `Alteration`, like `fade` and `lead_in`; none of them uses the pause.
    """
    size = round(GATE_SECONDS * RATE)
    gated = samples.copy()
    for begin in range(0, len(gated), size):
        piece = gated[begin : begin + size]
        if np.abs(piece).max() < GATE_BELOW * np.abs(samples).max():
            piece[:] = 0
    return gated


def fade(samples: np.ndarray, pause: float) -> np.ndarray:
    """Fade in over the first and out over the last `FADE_SECONDS`."""
    size = min(round(FADE_SECONDS * RATE), len(samples))
    faded = samples.copy()
    faded[:size] *= np.linspace(0, 1, size, dtype=samples.dtype)
    faded[len(faded) - size :] *= np.linspace(1, 0, size, dtype=samples.dtype)
    return faded


def lead_in(samples: np.ndarray, pause: float) -> np.ndarray:
    """Insert a second of white noise at `LEAD_IN_DB` before the speech."""
    noise = np.random.default_rng(0).normal(0, 10 ** (LEAD_IN_DB / 20), RATE)
    return np.concatenate([noise.astype(samples.dtype), samples])


def gain(decibel: float) -> Alteration:
    """Return an alteration that multiplies the samples, which stay floating-point numbers."""
    return lambda samples, pause: samples * np.float32(10 ** (decibel / 20))


ALTERATIONS: dict[str, Alteration] = {
    **{
        f"{seconds:g} s of zeros {where}": zeros(seconds, where)
        for where in ("before", "between", "after")
        for seconds in (0.3, 1.0, 2.0, 10.0)
    },
    "noise gate": gate,
    "fades": fade,
    "lead-in at -60 dBFS": lead_in,
    **{f"{decibel:+g} dB": gain(decibel) for decibel in (-30, -20, -10, 6)},
}
"""The alterations of recordings with speech."""


def without_speech(number: int = 200, seconds: float = 4.0) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (name, samples [S] float32) of recordings in which nobody speaks.

    They are digital zeros, constant voltage, one bit of noise, hum, tones, clicks, beeps, white,
    pink and room noise, and chords, each at several levels.
    """
    rng, size = np.random.default_rng(0), round(seconds * RATE)
    time = np.arange(size) / RATE
    room = np.exp(-np.arange(RATE // 4) / (RATE / 25)) * rng.normal(size=RATE // 4)

    def pink() -> np.ndarray:
        spectrum = np.fft.rfft(rng.normal(size=size)) / np.sqrt(np.arange(1, size // 2 + 2))
        return np.fft.irfft(spectrum, size)

    def beeps() -> np.ndarray:
        return np.sin(2 * np.pi * rng.uniform(400, 2000) * time) * (
            time % 1 < rng.uniform(0.1, 0.4)
        )

    def clicks() -> np.ndarray:
        samples = np.zeros(size)
        samples[rng.integers(0, size, rng.integers(1, 20))] = 1
        return samples

    def hum() -> np.ndarray:
        return np.sum([np.sin(2 * np.pi * 50 * k * time) / k for k in (1, 2, 3, 5)], axis=0)

    def chord() -> np.ndarray:
        notes = 220 * 2 ** (rng.choice([0, 3, 4, 7, 10, 12], 3, replace=False) / 12)
        harmonics = [np.sin(2 * np.pi * n * k * time) / k for n in notes for k in (1, 2, 3, 4)]
        return np.sum(harmonics, axis=0) * np.exp(-(time % 1) * 3)

    kinds: dict[str, Callable[[], np.ndarray]] = {
        "zeros": lambda: np.zeros(size),
        "constant": lambda: np.ones(size),
        "bit": lambda: rng.integers(0, 2, size) / 2**15,
        "hum": hum,
        "tone": lambda: np.sin(2 * np.pi * rng.uniform(100, 3000) * time),
        "clicks": clicks,
        "beeps": beeps,
        "white": lambda: rng.normal(size=size),
        "pink": pink,
        "room": lambda: np.convolve(pink(), room)[:size],
        "chord": chord,
    }
    for index in range(number):
        kind = list(kinds)[index % len(kinds)]
        samples = kinds[kind]()
        if kind not in ("zeros", "bit"):
            level = 10 ** (rng.uniform(-60, -10) / 20)
            samples = samples * level / max(np.abs(samples).max(), 1e-9)
        yield f"{kind}-{index:03d}", samples.astype(np.float32)


@click.command("robustness")
@click.option("--model", type=FILE, required=True, help="Bundle, such as exp/demo/final/chain.")
@click.option("--data", type=FILE, required=True, help="Cuts, such as exp/demo/data/test.jsonl.")
@click.option("--limit", type=click.IntRange(1), help="Number of utterances; default: all.")
def command(model: Path, data: Path, limit: int | None) -> None:
    """Recognise recordings with digital silence, at other levels, and without speech.

    For each alteration of the recordings, the table shows the number of word errors, its ratio to
    the number for the unaltered recordings, and the two-sided p-value of the difference. The last
    line shows how many words are recognised in recordings without speech.

    \b
    Example:
      python -m benchmarks robustness --model exp/demo/final/chain --data exp/demo/data/test.jsonl
    """
    with one_thread():
        for line in measure(model, data, limit):
            click.echo(line)


def measure(model: Path, data: Path, limit: int | None = None) -> Iterator[str]:
    """Yield the lines of the table, see `command`.

    Raises:
      BenchmarkError: there is no utterance.
    """
    cuts = read_cuts(data)[:limit]
    if not cuts:
        raise BenchmarkError(f"{data} has no utterance")
    references = {cut.id: text_of(cut) for cut in cuts}
    samples = {cut.id: load_cut_audio(cut, RATE).numpy() for cut in cuts}
    transcripts = recognise(model, samples, details=True)
    clean = score(references, {name: t.text for name, t in transcripts.items()})
    pauses = {name: _widest_pause(t, len(samples[name]) / RATE) for name, t in transcripts.items()}
    words = sum(len(utterance.ref) for utterance in clean.utterances)
    yield f"{'':24} errors  ratio  p-value   ({words} words)"
    yield _row("as they are", clean, clean)
    pooled = 0
    for name, alter in ALTERATIONS.items():
        altered = {id: alter(x, pauses[id]) for id, x in samples.items()}
        texts = {id: t.text for id, t in recognise(model, altered).items()}
        result = score(references, texts)
        pooled += result.errors
        yield _row(name, result, clean)
    yield f"{'all alterations, mean':24} {pooled / len(ALTERATIONS):6.1f}" + (
        f" {pooled / len(ALTERATIONS) / clean.errors:6.2f}" if clean.errors else ""
    )
    empty = recognise(model, dict(without_speech()))
    insertions = {name: len(t.text.split()) for name, t in empty.items() if t.text}
    kinds = sorted({name.partition("-")[0] for name in insertions})
    yield (
        f"without speech: {sum(insertions.values())} words in {len(insertions)} of {len(empty)}"
        " recordings" + (f" ({', '.join(kinds)})" if kinds else "")
    )


def recognise(
    model: Path, samples: Mapping[str, np.ndarray], details: bool = False
) -> dict[str, Transcript]:
    """Return the transcript of each recording [S] at `RATE`, without known speakers."""
    sources = [Source(name, name, partial(_blocks, x)) for name, x in samples.items()]
    return {transcript.name: transcript for transcript in transcribe(model, sources, details)}


def _blocks(samples: np.ndarray, rate: int, seconds: float) -> Iterator[Tensor]:
    """Yield samples in blocks, as `Source.blocks` does."""
    if rate != RATE:
        raise BenchmarkError(
            f"the model needs a sampling rate of {rate} Hz, but the recordings have {RATE} Hz: use"
            f" a model for {RATE} Hz"
        )
    size = round(seconds * RATE)
    for begin in range(0, len(samples), size):
        yield torch.from_numpy(samples[begin : begin + size].astype(np.float32))


def _widest_pause(transcript: Transcript, duration: float) -> float:
    """Return the middle of the widest pause between two words, in seconds; without one, the end."""
    words = [word for utterance in transcript.utterances for word in utterance.words or ()]
    gaps = [(b.start_s - a.end_s, (a.end_s + b.start_s) / 2) for a, b in pairwise(words)]
    return max(gaps)[1] if gaps else duration


def _row(name: str, result: Score, clean: Score) -> str:
    """Format the errors of an alteration, and their comparison with the recordings as they are."""
    ratio = result.errors / clean.errors if clean.errors else math.nan
    p_value = "" if result is clean else f"{compare(clean, result).p_value:9.4f}"
    return f"{name:24} {result.errors:6d} {ratio:6.2f}{p_value}"
