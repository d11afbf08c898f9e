"""Beams of a bundle's search: error rate, time and lost paths at several widths."""

import io
import json
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import process_time

import click
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from benchmarks.run import REF, BenchmarkError
from toolkit.config.click_types import FILE, JSON_OUT
from toolkit.decode.bundle import Bundle, is_ctc
from toolkit.decode.recogniser import (
    NetworkRecogniser,
    SpeakerRecogniser,
    load_recogniser,
)
from toolkit.decode.search import SearchResult
from toolkit.decode.sources import Inputs, Source, by_speaker, role_of
from toolkit.features.frontend import Frontend, TooShortError
from toolkit.features.shards import CmnState
from toolkit.features.silence import counted_frames
from toolkit.fsa.config import Beam
from toolkit.fsa.lattice import Weights
from toolkit.processes.devices import one_thread
from toolkit.score.transcripts import read_transcripts
from toolkit.score.wer import Score, score
from toolkit.storage.files import write_atomically

WIDTHS = (0.35, 0.5, 0.71, 1.0, 1.41, 2.0)
"""Factors for the search beam and `max_active`; 1 is the bundle's own search."""
LOST = 1e-3
"""Smallest difference of path scores, in scaled log units, that counts: smaller ones may be due to
rounding of float32 sums."""
BLOCK = 20.0
"""Seconds of audio that are read at a time."""


@dataclass(frozen=True)
class Width:
    """Errors and speed of a search of one width."""

    factor: float
    """Factor on the bundle's beam, see `WIDTHS`."""
    beam: Beam
    """Beam of the first attempt; the search widens it if no path survives."""
    score: Score
    """Word errors after all passes."""
    real_time_factor: float
    """Processor time of search and rescoring on one core, divided by the audio's duration."""
    worse: int
    """Number of utterances whose best path in the first pass has a lower score than with the
    widest beam."""
    arcs_per_frame: float
    """Arcs of the lattices per frame of the scores."""

    def to_dict(self) -> dict[str, float]:
        """Return the numbers by name."""
        return {
            "factor": self.factor,
            "beam": self.beam.search,
            "active": self.beam.max_active,
            "wer": self.score.percent,
            "errors": self.score.errors,
            "words": self.score.ref_units,
            "real_time_factor": self.real_time_factor,
            "worse_paths": self.worse,
            "arcs_per_frame": self.arcs_per_frame,
        }


@click.command("beams")
@click.option("--model", type=FILE, required=True, help="Model bundle, such as exp/demo/final.")
@click.option("--system", help="Name of the system in the bundle; default: the best system.")
@REF
@click.option(
    "--plot",
    type=FILE,
    help="Plot the error rate against the real-time factor in this PNG file.",
)
@click.option(
    "--json",
    "saved",
    type=JSON_OUT,
    help="Write the table to this JSON file. If it is RUN/beams.json, the report of RUN shows it "
    "as a figure.",
)
@click.argument("audio", nargs=-1, required=True)
def command(
    model: Path,
    system: str | None,
    ref: Path,
    plot: Path | None,
    saved: Path | None,
    audio: tuple[str, ...],
) -> None:
    """Recognise audio with narrower and wider search beams than the bundle's own.

    AUDIO takes the same inputs as `toolkit transcribe`. Features and acoustic scores are computed
    once. Then every utterance is searched and rescored with each beam width in turn. The last line
    shows how many errors and best paths change if the bundle's beam is doubled.

    \b
    Example:
      python -m benchmarks beams --model exp/demo/final --ref exp/demo/data/dev.jsonl \\
        exp/demo/data/dev.jsonl
    """
    with tempfile.TemporaryDirectory() as temporary, one_thread():
        sources = Inputs().sources(audio, sys.stdin and sys.stdin.buffer, Path(temporary))
        bundle = Bundle(model).choose(role_of(sources), system)
        widths = measure(bundle, sources, read_transcripts(ref).texts)
    for line in table(widths):
        click.echo(line)
    if plot is not None:
        write_atomically(plot, figure(widths))
    if saved is not None:
        rows = {"system": bundle.name, "widths": [width.to_dict() for width in widths]}
        write_atomically(saved, json.dumps(rows, indent=1) + "\n")


def measure(bundle: Path, sources: Sequence[Source], references: dict[str, str]) -> list[Width]:
    """Search every utterance at all `WIDTHS`.

    Args:
      bundle: the folder of one system.
      sources: utterances, each of which is searched as a whole.
      references: transcripts by the sources' names; sources without one are left out.

    Raises:
      BenchmarkError: no source has a transcript, or the bundle is one of a CTC network.
    """
    sources = [source for source in sources if source.name in references]
    if not sources:
        raise BenchmarkError(
            "no recording has a transcript in the file of --ref: the ids in this file must be the "
            "names of the recordings"
        )
    if is_ctc(bundle):
        raise BenchmarkError(
            f"{bundle} is the bundle of a CTC network: use `toolkit tta sweep` instead"
        )
    recogniser = load_recogniser(bundle)
    decoder, weights = recogniser.decoder, recogniser.weights
    beams = [_scaled(decoder.beams[0], factor) for factor in WIDTHS]
    retries = [beam.search / decoder.beams[0].search for beam in decoder.beams[1:]]
    decoders = [replace(decoder, beams=beam.with_retries(retries)) for beam in beams]
    texts: list[dict[str, str]] = [{} for _ in WIDTHS]
    seconds, arcs, worse = [0.0] * len(WIDTHS), [0] * len(WIDTHS), [0] * len(WIDTHS)
    audio, frames = 0.0, 0
    for recording in _scored(recogniser, sources):
        if not frames:  # compile
            decoder.best(decoder.search(recording.log_likelihoods), weights)
        audio, frames, best = audio + recording.seconds, frames + len(recording.log_likelihoods), []
        for number, widened in enumerate(decoders):
            start = process_time()
            result = widened.search(recording.log_likelihoods)
            texts[number][recording.name] = widened.best(result, weights).text
            seconds[number] += process_time() - start
            arcs[number] += result.lattices[0].num_arcs if result.lattices else 0
            best.append(_best_score(result))
        for number, best_score in enumerate(best):
            worse[number] += best_score < best[-1] - LOST
    if not frames:
        raise BenchmarkError(
            "all recordings are too short to compute features from: use longer recordings"
        )
    # A recording that is too short to have features has no text: all its words are deletions.
    references = {source.name: references[source.name] for source in sources}
    return [
        Width(
            factor, beam, score(references, hypotheses), cpu_seconds / audio, lost, count / frames
        )
        for factor, beam, hypotheses, cpu_seconds, lost, count in zip(
            WIDTHS, beams, texts, seconds, worse, arcs, strict=True
        )
    ]


def _scaled(beam: Beam, factor: float) -> Beam:
    """Return a beam that is wider or narrower by a factor."""
    most = max(beam.min_active + 1, round(beam.max_active * factor))
    return replace(beam, search=beam.search * factor, max_active=most)


@dataclass(frozen=True)
class _Scored:
    """An utterance with its scores."""

    name: str
    log_likelihoods: Tensor
    """[T, P] log-likelihoods."""
    seconds: float
    """Duration of the audio."""


def _scored(
    recogniser: NetworkRecogniser | SpeakerRecogniser, sources: Sequence[Source]
) -> Iterator[_Scored]:
    """Score the utterances of each speaker, as `toolkit.decode.transcribe` does."""
    config, front = recogniser.frontend_config, recogniser.frontend
    for numbers in by_speaker(sources):
        names = [sources[number].name for number in numbers]
        waveforms = [torch.cat([*sources[n].blocks(config.sampling_rate, BLOCK)]) for n in numbers]
        seconds = [len(samples) / config.sampling_rate for samples in waveforms]
        features = [_features(front, samples) for samples in waveforms]
        if isinstance(recogniser, SpeakerRecogniser):
            for number, scores in recogniser.log_likelihoods(features):
                yield _Scored(names[number], scores, seconds[number])
            continue
        mean = CmnState.empty(config.dimension)
        for number, x in enumerate(features):
            if len(x):
                yield _Scored(names[number], recogniser.log_likelihoods(x, mean), seconds[number])
            mean = mean.after(x, counted_frames(x, config.kind))


def _features(front: Frontend, samples: Tensor) -> Tensor:
    """Return the features [T, F] of an utterance; T is 0 if it is shorter than a window."""
    try:
        return front(samples)
    except TooShortError:
        return torch.zeros(0, front.config.dimension)


def _best_score(result: SearchResult) -> float:
    """Return the score of the best path of the first pass."""
    if not result.lattices:
        return -math.inf
    return result.scored_lattice(0).best_path(Weights(result.acoustic_scale)).score


def table(widths: Sequence[Width]) -> list[str]:
    """Return a table of all widths, and what doubling the bundle's beam changes."""
    lines = ["  width  beam   active    WER  errors  real-time factor  worse path  arcs per frame"]
    for width in widths:
        mark = "*" if width.factor == 1 else " "
        lines.append(
            f"{mark} {width.factor:5.2f} {width.beam.search:5.1f} {width.beam.max_active:8d}"
            f" {width.score.percent:6.2f} {width.score.errors:7d} {width.real_time_factor:17.4f}"
            f" {width.worse:11d} {width.arcs_per_frame:15.1f}"
        )
    default, widest = next(width for width in widths if width.factor == 1), widths[-1]
    change = default.score.errors - widest.score.errors
    share = 100 * abs(change) / max(1, default.score.errors)
    return [
        *lines,
        "* the bundle's own beam. Worse path: utterances whose best path is worse than with the"
        " widest beam.",
        f"At {widest.factor:g} times the bundle's beam there are {abs(change)}"
        f" {'fewer' if change >= 0 else 'more'} of {default.score.errors} errors ({share:.1f} %),"
        f" and {default.worse} of {len(default.score.utterances)} utterances have a better path.",
    ]


def figure(widths: Sequence[Width]) -> bytes:
    """Draw error rate against real-time factor, a point for each width, as PNG."""
    drawn = Figure(figsize=(6, 4), layout="constrained")
    axes = drawn.add_subplot()
    factors = [width.real_time_factor for width in widths]
    rates = [width.score.percent for width in widths]
    axes.plot(factors, rates, "o-", color="#2a6fbb")
    for width, x, y in zip(widths, factors, rates, strict=True):
        axes.annotate(
            f"{width.beam.search:.3g}, {width.beam.max_active:,}",
            (x, y),
            textcoords="offset points",
            xytext=(4, 6),
            fontsize=8,
            fontweight="bold" if width.factor == 1 else "normal",
        )
    axes.set_xscale("log")
    axes.set_xlabel("real-time factor of search and rescoring, one core")
    axes.set_ylabel("word error rate, %")
    axes.set_title("Search beam, most active states; bold: the bundle's", fontsize=10)
    axes.grid(color="#e5e5e5")
    out = io.BytesIO()
    FigureCanvasAgg(drawn).print_png(out)
    return out.getvalue()
