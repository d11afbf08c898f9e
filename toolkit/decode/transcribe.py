"""Transcribes recordings of any length with a recogniser bundle."""

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from toolkit.decode.bundle import Bundle
from toolkit.decode.config import SegmentConfig
from toolkit.decode.decoded import DecodedUtterance, Transcript
from toolkit.decode.recogniser import load_recogniser
from toolkit.decode.sources import Source, by_speaker, role_of
from toolkit.decode.stream import Recogniser
from toolkit.errors import ToolkitError
from toolkit.features.audio import AudioError
from toolkit.features.frontend import Frontend, FrontendError
from toolkit.features.shards import CmnState
from toolkit.features.silence import counted_frames
from toolkit.features.stream import StreamingFrontend
from toolkit.processes.workers import map_in_processes

MOST, LEAST = 7.0, 1.5
"""Limits of the range from quiet to loud frames, in nats of log energy (30 and 6.5 dB). Frames more
than `MOST` below the loud ones count as equally quiet. If the range is below `LEAST`, energy does
not tell speech from noise."""
SMOOTHED = 0.15
"""Seconds on either side of a frame over which its speech score is averaged."""


@dataclass(frozen=True)
class Segment:
    """A segment of a recording that is recognised as one utterance."""

    start: int
    """Number of the segment's first frame in the recording, from 0."""
    features: Tensor
    """[T, F] features before normalisation."""


class Segmenter:
    """Takes a recording's features block by block and cuts them into segments.

    The speech score of a frame is the mean of two values: the position of its energy between
    those of the quiet and the loud frames around it, and the acoustic model's posterior of speech.
    If only one of the two is known, it is the score; if neither is, all frames count as speech.
    Stretches of low scores are pauses. A segment ends in the longest pause between `shortest` and
    `longest` seconds after its start, or in the last of several equally long ones. If there is no
    pause, it ends at the lowest score of its second half. Memory holds `longest` seconds and one
    block.

    Args:
      config: where to cut.
      frame_shift: seconds between frames.
    """

    def __init__(self, config: SegmentConfig, frame_shift: float) -> None:
        self._config = config
        self._longest = round(config.longest / frame_shift)
        self._shortest = round(config.shortest / frame_shift)
        self._pause = max(1, round(config.pause / frame_shift))
        self._margin = round(config.margin / frame_shift)
        self._smooth = round(SMOOTHED / frame_shift)
        self._begin = 0
        self._features: Tensor | None = None
        self._energies = self._silence = torch.zeros(0)

    @property
    def num_buffered_frames(self) -> int:
        """Number of frames in memory that belong to no segment yet."""
        return 0 if self._features is None else len(self._features)

    def push(
        self, features: Tensor, silence: Tensor | None = None, energies: Tensor | None = None
    ) -> list[Segment]:
        """Take the next frames; return the segments that are complete.

        Args:
          features: [T, F] before normalisation.
          silence: [T] posteriors of silence; None if they are unknown, then for all blocks of the
            recording.
          energies: [T] log energies; None: they are computed from the features, which are then
            log-mel energies.
        """
        if self._features is None:
            self._features = features.new_zeros(0, features.shape[1])
        self._features = torch.cat([self._features, features])
        energies = features.logsumexp(dim=1) if energies is None else energies
        self._energies = torch.cat([self._energies, energies])
        # NaN marks frames with an unknown posterior, which are scored by energy alone.
        silence = features.new_full((len(features),), torch.nan) if silence is None else silence
        self._silence = torch.cat([self._silence, silence])
        segments = []
        while len(self._features) > self._longest + 2 * self._margin:
            segments += self._take(self._margin)
        return segments

    def finish(self) -> list[Segment]:
        """Return the remaining segments."""
        segments = []
        while self._features is not None and len(self._features):
            segments += self._take(0)
        return segments

    def _take(self, trailing_frames: int) -> list[Segment]:
        """Remove frames from the start of the buffer; return the segment among them, if any.

        Args:
          trailing_frames: frames to keep at the end if the buffer has no speech; 0 at the end of a
            recording.
        """
        speech = self._speech()  # [T]
        if bool(self._silence[0].isnan()):
            # Silence posteriors are unknown. Energy alone is not reliable enough to drop anything.
            if len(speech) <= self._longest:
                return self._cut(len(speech), slice(0, len(speech)))
            end, resume = self._best_cut(speech, 0, len(speech))
            return self._cut(resume, slice(0, end))
        # Without speech, drop all frames but the last ones, in which the next segment may begin.
        loud = np.flatnonzero(speech >= self._config.threshold)
        if not len(loud):
            return self._cut(len(speech) - trailing_frames, None)
        # Drop a pause at the start, then take what fits into a segment.
        begin = max(0, int(loud[0]) - self._margin)
        if begin > self._pause:
            return self._cut(begin, None)
        if len(speech) - begin <= self._longest:
            end = min(len(speech), int(loud[-1]) + 1 + self._margin)
            return self._cut(len(speech), slice(begin, end))
        end, resume = self._best_cut(speech, begin, self._margin)
        return self._cut(resume, slice(begin, end))

    def _best_cut(self, speech: np.ndarray, begin: int, margin: int) -> tuple[int, int]:
        """Return where the segment from `begin` should end, and where the next may begin.

        Both are frame numbers; frames between them are dropped. If a pause is longer than twice
        `margin`, the segments before and after it keep `margin` frames of it each.
        """
        first, last = begin + self._shortest, begin + self._longest
        # Pauses begin and end where `quiet`, framed by zeros, changes.
        quiet = np.concatenate([[0], speech[: last + 1] < self._config.threshold, [0]])
        edges = np.flatnonzero(np.diff(quiet))
        spans = edges.reshape(-1, 2).tolist()
        later = [span for span in spans if span[0] >= first]
        under_way = [(first, stop) for start, stop in spans if start < first]
        # If there is no other pause, the later part of a pause that begins too early counts.
        for spans_in_reach in (later, under_way):
            pauses = [(b - a, a, b) for a, b in spans_in_reach if b - a >= self._pause]
            if pauses:
                _, start, stop = max(pauses)
                if stop - start > 2 * margin:
                    return start + margin, stop - margin
                return (start + stop) // 2, (start + stop) // 2
        # No pause: cut in the second half where speech is least likely.
        middle = begin + self._longest // 2
        lowest = middle + int(speech[middle:last].argmin())
        return lowest, lowest

    def _cut(self, resume: int, span: slice | None) -> list[Segment]:
        """Remove the first `resume` frames; return the segment in `span`, if any."""
        segments = []
        if span is not None:
            segments = [Segment(self._begin + span.start, self._features[span].clone())]
        self._features, self._energies = self._features[resume:], self._energies[resume:]
        self._silence = self._silence[resume:]
        self._begin += resume
        return segments

    def _speech(self) -> np.ndarray:
        """Return the speech scores [T] of all frames in memory."""
        energy = self._energies.numpy()
        # Quiet and loud frames are the 5th and 95th percentiles of log energy.
        low, high = np.percentile(energy, (5, 95))
        low, posterior = max(low, high - MOST), 1 - self._silence.numpy()
        if high - low < LEAST:
            score = np.where(np.isnan(posterior), 1.0, posterior)
        else:
            score = np.clip((energy - low) / (high - low), 0, 1)
            score = np.where(np.isnan(posterior), score, (score + posterior) / 2)
        # A moving average; the edge values are repeated.
        width = 2 * self._smooth + 1
        padded = np.pad(score, self._smooth, mode="edge")
        return np.convolve(padded, np.full(width, 1 / width), "valid")


logger = logging.getLogger(__name__)
BLOCK = 20.0
"""Seconds of audio that are read, and scored for silence, at a time."""
NO_SOUND = "%s: nothing but digital silence, so it has no words"
NO_SPEECH = "%s: no speech was found, so it has no words"


def transcribe(
    model: Path,
    sources: Sequence[Source],
    details: bool = False,
    config: SegmentConfig | None = None,
    device: str = "cpu",
    fast: bool = False,
    int8: bool = False,
    batch: int = 1,
) -> Iterator[Transcript]:
    """Yield the transcripts of recordings in the order given.

    A recording no longer than `SegmentConfig.longest` is one utterance. A longer recording is cut
    into segments, which become utterances of its speaker in order of time. A network on log-mel
    features normalises by the running mean of a speaker's recordings so far, and never holds a long
    recording in memory. A system that recognises by speaker reads all recordings of a speaker
    before it returns the first result; a recording without a speaker (see `Source.speaker`) counts
    as a speaker of its own. If a recording is broken, its transcript holds the fault, and the other
    recordings are still transcribed.

    Args:
      model: a bundle, such as exp/demo/final. Of several systems, the best for named speakers is
        used if any recording's speaker is named, otherwise the best for unknown speakers.
      sources: the recordings.
      details: find word times and confidences too.
      config: where long recordings are cut; None: the default.
      device: where the network computes.
      fast: leave out rescoring with a larger language model.
      int8: compute in 8 bits, see `toolkit.decode.recogniser.load_recogniser`.
      batch: number of utterances that the network scores at a time, which may change scores by
        rounding. A system that recognises by speaker ignores it and takes all of a speaker's
        utterances.

    Raises:
      BundleError: `model` is not a bundle.
    """
    bundle = Bundle(model).choose(role_of(sources))
    recogniser = load_recogniser(bundle, device, fast, int8)
    if details:
        recogniser.word_aligner  # noqa: B018 - fails now rather than at the first word
    frame_shift_s = recogniser.frontend_config.frame_shift_ms / 1000
    utterances_of: dict[int, list[DecodedUtterance]] = defaultdict(list)
    transcripts: dict[int, Transcript] = {}
    next_number = 0
    for events in _batches(recogniser, sources, config or SegmentConfig(), batch):
        ends = {event.source: event for event in events if isinstance(event, _End)}
        broken = {number for number, end in ends.items() if end.error is not None}
        # A recording that breaks off is not recognised at all, as it would affect its speaker's
        # model.
        segments = [e for e in events if isinstance(e, _SourceSegment) and e.source not in broken]
        utterances = recogniser.recognise_batch([(s.features, s.state) for s in segments], details)
        for segment, utterance in zip(segments, utterances, strict=True):
            start_s = segment.start * frame_shift_s
            placed = utterance.placed(start_s, start_s + len(segment.features) * frame_shift_s)
            utterances_of[segment.source].append(placed)
        for number, end in ends.items():
            source, decoded = sources[number], utterances_of.pop(number, [])
            if end.error is None:
                transcripts[number] = Transcript(source.name, source.key, tuple(decoded))
            else:
                transcripts[number] = source.failed(end.error)
        while next_number in transcripts:
            yield transcripts.pop(next_number)
            next_number += 1


@dataclass(frozen=True)
class _SourceSegment(Segment):
    """A segment of a source, ready to be recognised."""

    source: int
    """The number of its recording."""
    state: CmnState
    """The normaliser's state after the speaker's earlier segments."""


@dataclass(frozen=True)
class _End:
    """Marks the end of a recording, or the place where reading it failed."""

    source: int
    """The number of the recording."""
    error: ToolkitError | None = None
    """Why the rest of the recording cannot be read; None at its end."""


Event = _SourceSegment | _End


def _batches(
    recogniser: Recogniser, sources: Sequence[Source], config: SegmentConfig, batch: int
) -> Iterator[list[Event]]:
    """Yield batches of segments to recognise together, and the ends of recordings.

    If the recogniser works by speaker, a batch is all that one speaker says. Its features are held
    in memory: 20 MB per hour of cepstra. Otherwise a batch has at most `batch` segments; the end of
    a recording is yielded at once if no segment is waiting.
    """
    if recogniser.by_speaker:
        for numbers in by_speaker(sources):
            yield list(_read_segments(recogniser, sources, numbers, config))
        return
    events: list[Event] = []
    num_segments = 0
    for event in _read_segments(recogniser, sources, range(len(sources)), config):
        events.append(event)
        num_segments += isinstance(event, _SourceSegment)
        if num_segments in (0, batch):
            yield events
            events, num_segments = [], 0
    yield events


def _read_segments(
    recogniser: Recogniser,
    sources: Sequence[Source],
    numbers: Iterable[int],
    config: SegmentConfig,
) -> Iterator[Event]:
    """Read recordings in order, and carry each speaker's running mean along."""
    kind = recogniser.frontend_config.kind
    empty = CmnState.empty(recogniser.frontend_config.dimension)
    means: dict[str, CmnState] = {}
    for number in numbers:
        source = sources[number]
        mean = empty if source.speaker is None else means.get(source.speaker, empty)
        blocks = source.blocks(recogniser.sampling_rate, BLOCK)
        has_sound = has_speech = False
        try:
            for segment in _segments(recogniser, blocks, config):
                yield _SourceSegment(segment.start, segment.features, number, mean)
                counted = counted_frames(segment.features, kind)
                has_sound = has_sound or bool(counted.any())
                has_speech = has_speech or recogniser.has_speech(segment.features)
                mean = mean.after(segment.features, counted)
        except (AudioError, FrontendError) as error:
            yield _End(number, error)
        else:
            if not has_speech:
                logger.warning(NO_SPEECH if has_sound else NO_SOUND, source.called)
            yield _End(number)
            if source.speaker is not None:
                means[source.speaker] = mean


def _segments(
    recogniser: Recogniser, blocks: Iterator[Tensor], config: SegmentConfig
) -> Iterator[Segment]:
    """Yield a short recording whole, or a long one's segments."""
    max_samples = config.longest * recogniser.sampling_rate
    first_blocks: list[Tensor] = []
    while sum(map(len, first_blocks)) <= max_samples:
        block = next(blocks, None)
        if block is None:
            samples = torch.cat([torch.zeros(0), *first_blocks])
            yield Segment(0, recogniser.frontend(samples))
            return
        first_blocks.append(block)
    segmenter = Segmenter(config, recogniser.frontend_config.frame_shift_ms / 1000)
    for frames in _frames(recogniser, chain(first_blocks, blocks)):
        yield from segmenter.push(*frames)
    yield from segmenter.finish()


def _frames(
    recogniser: Recogniser, blocks: Iterable[Tensor]
) -> Iterator[tuple[Tensor, Tensor | None, Tensor | None]]:
    """Yield the arguments of `Segmenter.push`, block by block.

    These are features [T, F] of a recording, posteriors of silence [T] or None, and log energies
    [T] or None.
    """
    config = recogniser.frontend_config
    mean = CmnState.empty(config.dimension)
    feature_stream, energy_stream = StreamingFrontend(recogniser.frontend), None
    if recogniser.by_speaker:  # cepstra give the energy less exactly than log-mel features
        energy_stream = StreamingFrontend(Frontend(replace(config, kind="fbank")))
    for block in chain(blocks, [None]):
        features = feature_stream.finish() if block is None else feature_stream.push(block)
        energies = None
        if energy_stream is not None:
            log_mel = energy_stream.finish() if block is None else energy_stream.push(block)
            energies = log_mel.logsumexp(dim=1)
        silence = recogniser.silence_posteriors(features, mean) if len(features) else None
        mean = mean.after(features, counted_frames(features, config.kind))
        yield features, silence, energies


def transcribe_in_processes(
    model: Path,
    sources: Sequence[Source],
    jobs: int,
    details: bool,
    device: str,
    fast: bool,
    int8: bool = False,
    batch: int = 1,
) -> Iterator[Transcript]:
    """Transcribe recordings like `transcribe`, in `jobs` processes.

    Every process loads the bundle once and takes whole speakers, so that the results are the same
    as with one process. With several processes, the results come in the order of the sources, after
    all recordings have been transcribed.

    Args:
      sources: the recordings; for several processes they must be files.
      jobs: maximum number of processes. 1: this process transcribes, and yields results as they
        come.
      model, details, device, fast, int8, batch: see `toolkit.decode.transcribe.transcribe`.
    """
    settings = {"details": details, "device": device, "fast": fast, "int8": int8, "batch": batch}
    if jobs == 1:
        yield from transcribe(model, sources, **settings)
        return
    shares = partition_by_speaker(sources, jobs)
    transcribe_share = partial(_transcribed, model=model, **settings)
    transcripts: dict[int, Transcript] = {}
    parts = map_in_processes(
        transcribe_share, [[sources[n] for n in share] for share in shares], jobs
    )
    for share, part in zip(shares, parts, strict=True):
        transcripts.update(zip(share, part, strict=True))
    for number in range(len(sources)):
        yield transcripts[number]


def partition_by_speaker(sources: Sequence[Source], jobs: int) -> list[list[int]]:
    """Return each process's share of the sources; a speaker's sources stay together."""
    shares: list[list[int]] = [[] for _ in range(jobs)]
    # Speakers with the most recordings first, each to the process that has the fewest so far.
    for group in sorted(by_speaker(sources), key=len, reverse=True):
        min(shares, key=len).extend(group)
    return [sorted(share) for share in shares if share]


def _transcribed(
    sources: Sequence[Source], model: Path, **settings: bool | str | int
) -> list[Transcript]:
    """Transcribe some sources, in a worker process."""
    return list(transcribe(model, sources, **settings))
