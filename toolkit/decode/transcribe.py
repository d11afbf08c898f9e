"""Transcription of recordings of any length with a recogniser bundle."""

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from toolkit.decode.bundle import find_system
from toolkit.decode.ctc.recogniser import CtcRecogniser
from toolkit.decode.decoded import Transcript, Utterance
from toolkit.decode.recogniser import NetworkRecogniser, SpeakerRecogniser, load_recogniser
from toolkit.decode.sources import Source, by_speaker, role_of
from toolkit.errors import ToolkitError
from toolkit.features.audio import AudioError
from toolkit.features.frontend import Frontend, FrontendError
from toolkit.features.low_frame_rate import LOW_RATE_FACTOR
from toolkit.features.shards import CmnState
from toolkit.features.silence import counted_frames
from toolkit.features.stream import StreamingFrontend
from toolkit.processes.workers import map_in_processes

MOST, LEAST = 7.0, 1.5
"""Energy range between quiet and loud frames, in nats of log energy (30 and 6.5 dB). Frames more
than `MOST` below the loud ones count as equally quiet; where the range is below `LEAST`, energy
does not tell speech from noise."""
SMOOTHED = 0.15
"""Seconds to either side of a frame over which its speech score is averaged."""


@dataclass(frozen=True)
class SegmentConfig:
    """Where recordings are cut; times in seconds."""

    longest: float = 30.0
    """Longest segment. A recording that is no longer is left in one piece."""
    shortest: float = 5.0
    """Shortest segment that may end in a pause."""
    pause: float = 0.3
    """Shortest pause to cut in."""
    margin: float = 0.3
    """Silence that is kept around speech. The rest of a longer pause is dropped, if the acoustic
    model's posteriors of silence are known."""
    threshold: float = 0.35
    """Speech score, 0 to 1, below which a frame belongs to a pause."""

    def __post_init__(self) -> None:
        if not 0 < self.shortest < self.longest:
            raise ValueError("need 0 < shortest < longest")
        if self.pause <= 0 or self.margin < 0 or not 0 < self.threshold < 1:
            raise ValueError("need pause > 0, margin >= 0 and 0 < threshold < 1")


@dataclass(frozen=True)
class Segment:
    """A stretch of a recording that is recognised as an utterance."""

    start: int
    """Number of its first frame in the recording, from 0."""
    features: Tensor
    """[T, F] its features before normalisation."""


class Segmenter:
    """Takes a recording's features block by block and returns its segments.

    The speech score of a frame is the mean of two values: the position of its energy between
    those of the quiet and the loud frames around it, and the acoustic model's posterior of speech.
    Where only one of the two is known, it is that one; where neither is, all frames count as
    speech. Stretches of low scores are pauses. A segment ends in the longest pause between
    `shortest` and `longest` seconds after its start, the last one among equals; if there is no
    pause, at the lowest score of its second half. Memory holds `longest` seconds and one block.

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
        self._silence = torch.zeros(0)

    @property
    def num_buffered_frames(self) -> int:
        """Frames in memory, of which no segment has been made yet."""
        return 0 if self._features is None else len(self._features)

    def push(self, features: Tensor, silence: Tensor | None = None) -> list[Segment]:
        """Take more frames; return the segments that are complete.

        Args:
          features: [T, F] log-mel energies before normalisation.
          silence: [T] posteriors of silence; None if they are not known, for all blocks of the
            recording.
        """
        if self._features is None:
            self._features = features.new_zeros(0, features.shape[1])
        self._features = torch.cat([self._features, features])
        # NaN marks frames of unknown posterior, which are scored by energy alone.
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

    def _take(self, margin: int) -> list[Segment]:
        """Take off the first segment, or a stretch without speech except for its margin."""
        speech = self._speech()
        if bool(self._silence[0].isnan()):
            # Energy alone is not reliable enough to drop anything.
            if len(speech) <= self._longest:
                return self._cut(len(speech), slice(0, len(speech)))
            end, resume = self._best_cut(speech, 0, len(speech))
            return self._cut(resume, slice(0, end))
        loud = np.flatnonzero(speech >= self._config.threshold)
        if not len(loud):
            return self._cut(len(speech) - margin, None)
        begin = max(0, int(loud[0]) - self._margin)
        if begin > self._pause:
            return self._cut(begin, None)
        if len(speech) - begin <= self._longest:
            end = min(len(speech), int(loud[-1]) + 1 + self._margin)
            return self._cut(len(speech), slice(begin, end))
        end, resume = self._best_cut(speech, begin, self._margin)
        return self._cut(resume, slice(begin, end))

    def _best_cut(self, speech: np.ndarray, begin: int, margin: int) -> tuple[int, int]:
        """Return the end of the segment that begins at `begin`, and where the next one may begin.

        Both are frames; what lies between them is dropped.
        """
        first, last = begin + self._shortest, begin + self._longest
        quiet = np.concatenate([[0], speech[: last + 1] < self._config.threshold, [0]])
        edges = np.flatnonzero(np.diff(quiet))
        spans = edges.reshape(-1, 2).tolist()
        later = [span for span in spans if span[0] >= first]
        under_way = [(first, stop) for start, stop in spans if start < first]
        # Of a pause that begins too early the rest counts, where there is no other.
        for spans_in_reach in (later, under_way):
            pauses = [(b - a, a, b) for a, b in spans_in_reach if b - a >= self._pause]
            if pauses:
                _, start, stop = max(pauses)
                if stop - start > 2 * margin:
                    return start + margin, stop - margin
                return (start + stop) // 2, (start + stop) // 2
        middle = begin + self._longest // 2
        lowest = middle + int(speech[middle:last].argmin())
        return lowest, lowest

    def _cut(self, resume: int, span: slice | None) -> list[Segment]:
        segments = []
        if span is not None:
            segments = [Segment(self._begin + span.start, self._features[span].clone())]
        self._features, self._silence = self._features[resume:], self._silence[resume:]
        self._begin += resume
        return segments

    def _speech(self) -> np.ndarray:
        """Return the speech scores [T] of all frames in memory."""
        energy = self._features.logsumexp(dim=1).numpy()
        low, high = np.percentile(energy, (5, 95))
        low, posterior = max(low, high - MOST), 1 - self._silence.numpy()
        if high - low < LEAST:
            score = np.where(np.isnan(posterior), 1.0, posterior)
        else:
            score = np.clip((energy - low) / (high - low), 0, 1)
            score = np.where(np.isnan(posterior), score, (score + posterior) / 2)
        width = 2 * self._smooth + 1
        padded = np.pad(score, self._smooth, mode="edge")
        return np.convolve(padded, np.full(width, 1 / width), "valid")


logger = logging.getLogger(__name__)
BLOCK = 20.0
"""Seconds of audio that are read, and scored for silence, at a time."""


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
    """Transcribe recordings, in the order given.

    A recording is one utterance if it is no longer than `SegmentConfig.longest`, otherwise it is
    cut into segments, the speaker's utterances in order of time. A network on log-mel features
    normalises by the running mean of a speaker's recordings so far, and never holds a long one in
    memory; a system that recognises by speaker hears all recordings of a speaker before it gives
    the first result (`Source.speaker`; where there is none, the recording is a speaker). For a
    broken recording the transcript holds the fault, and the others are still transcribed.

    Args:
      model: a bundle, such as exp/demo/final; of several systems the best for recordings whose
        speakers are named if any of these is, otherwise the best without speakers.
      sources: the recordings.
      details: find word times and confidences too.
      config: where long recordings are cut; None: the default.
      device: where the network computes.
      fast: leave out rescoring with a larger language model.
      int8: compute in 8 bits, see `toolkit.decode.recogniser.load_recogniser`.
      batch: utterances that the network scores at a time, which may change scores by rounding; a
        system that recognises by speaker takes what a speaker said in any case.

    Raises:
      BundleError: `model` is not a bundle.
    """
    bundle = find_system(model, role=role_of(sources))
    recogniser = load_recogniser(bundle, device, fast, int8)
    config = config or SegmentConfig()
    if details:
        recogniser.word_aligner  # noqa: B018 - fails now rather than at the first word
    if isinstance(recogniser, SpeakerRecogniser):
        yield from transcribe_speakers(recogniser, sources, details, config)
        return
    utterances_of: dict[int, list[Utterance]] = defaultdict(list)
    for run in _runs(_read_segments(recogniser, sources, config), batch):
        pieces = [event for event in run if isinstance(event, _Piece)]
        for piece, utterance in zip(pieces, _recognise(recogniser, pieces, details), strict=True):
            utterances_of[piece.source].append(utterance)
        for event in run:
            if isinstance(event, _End):
                source, utterances = sources[event.source], utterances_of.pop(event.source, [])
                if event.error is None:
                    yield Transcript(source.name, source.key, tuple(utterances))
                else:
                    yield source.failed(event.error)


@dataclass(frozen=True)
class _Piece:
    """An utterance to recognise."""

    source: int
    """The number of its recording."""
    segment: Segment
    state: CmnState
    """The mean of what its speaker said before."""


@dataclass(frozen=True)
class _End:
    """The end of a recording, or of what can be read of it."""

    source: int
    error: ToolkitError | None = None


def _read_segments(
    recogniser: NetworkRecogniser | CtcRecogniser, sources: Sequence[Source], config: SegmentConfig
) -> Iterator[_Piece | _End]:
    """Read the recordings one after the other, and move on the mean of each speaker."""
    kind = recogniser.frontend_config.kind
    empty = CmnState.empty(recogniser.frontend_config.dimension)
    means: dict[str, CmnState] = {}
    for number, source in enumerate(sources):
        mean = empty if source.speaker is None else means.get(source.speaker, empty)
        blocks = source.blocks(recogniser.frontend_config.sampling_rate, BLOCK)
        has_sound = False
        try:
            for segment in _segments(recogniser, blocks, config):
                yield _Piece(number, segment, mean)
                counted = counted_frames(segment.features, kind)
                has_sound = has_sound or bool(counted.any())
                mean = mean.after(segment.features, counted)
        except (AudioError, FrontendError) as error:
            yield _End(number, error)
        else:
            if not has_sound:
                logger.warning(NO_SOUND, source.called)
            yield _End(number)
            if source.speaker is not None:
                means[source.speaker] = mean


def _runs(events: Iterable[_Piece | _End], batch: int) -> Iterator[list[_Piece | _End]]:
    """Yield events in runs of at most `batch` pieces; an end does not wait where no piece does."""
    run: list[_Piece | _End] = []
    pieces = 0
    for event in events:
        run.append(event)
        pieces += isinstance(event, _Piece)
        if pieces in (0, batch):
            yield run
            run, pieces = [], 0
    yield run


def _recognise(
    recogniser: NetworkRecogniser | CtcRecogniser, pieces: Sequence[_Piece], details: bool
) -> Iterator[Utterance]:
    """Recognise utterances in one batch."""
    shift = recogniser.frontend_config.frame_shift_ms / 1000
    batch = [(piece.segment.features, piece.state) for piece in pieces]
    for piece, result in zip(pieces, recogniser.recognise_batch(batch, details), strict=True):
        start = piece.segment.start * shift
        yield result.utterance(start, start + len(piece.segment.features) * shift)


def _segments(
    recogniser: NetworkRecogniser | CtcRecogniser, blocks: Iterator[Tensor], config: SegmentConfig
) -> Iterator[Segment]:
    """Yield the whole recording if it is short, otherwise its segments."""
    max_samples = config.longest * recogniser.frontend_config.sampling_rate
    head: list[Tensor] = []
    while sum(map(len, head)) <= max_samples:
        block = next(blocks, None)
        if block is None:
            samples = torch.cat([torch.zeros(0), *head])
            yield Segment(0, recogniser.frontend(samples))
            return
        head.append(block)
    shift = recogniser.frontend_config.frame_shift_ms / 1000
    segmenter = Segmenter(config, shift)
    mean = CmnState.empty(recogniser.frontend_config.dimension)
    for features in _features(recogniser, head, blocks):
        silence = _silence(recogniser, features, mean)
        mean = mean.after(features, counted_frames(features, recogniser.frontend_config.kind))
        yield from segmenter.push(features, silence)
    yield from segmenter.finish()


def _features(
    recogniser: NetworkRecogniser | CtcRecogniser, head: list[Tensor], blocks: Iterator[Tensor]
) -> Iterator[Tensor]:
    stream = StreamingFrontend(recogniser.frontend)
    while head:
        yield stream.push(head.pop(0))
    for block in blocks:
        yield stream.push(block)
    yield stream.finish()


def _silence(recogniser: NetworkRecogniser, features: Tensor, mean: CmnState) -> Tensor | None:
    """Return the posteriors [T] of silence, the block scored as an utterance of its own."""
    if recogniser.silence is None or not len(features):
        return None
    scores = recogniser.model.log_likelihoods(features, mean)
    return recogniser.silence(scores).repeat_interleave(LOW_RATE_FACTOR)[: len(features)]


NO_SOUND = "%s: nothing but digital silence, so it has no words"


@dataclass(frozen=True)
class _Heard:
    """The utterances of a recording."""

    cepstra: Tensor
    """[T, F] of the recording."""
    spans: list[tuple[int, int]]
    """First frame and end of each utterance."""


def transcribe_speakers(
    recogniser: SpeakerRecogniser,
    sources: Sequence[Source],
    details: bool,
    config: SegmentConfig,
) -> Iterator[Transcript]:
    """Transcribe recordings, in the order given; see `toolkit.decode.transcribe`.

    Of a long recording memory holds the cepstra, 20 MB an hour.
    """
    done: dict[int, Transcript] = {}
    next_number = 0
    for numbers in by_speaker(sources):
        done.update(_speaker_transcripts(recogniser, sources, numbers, details, config))
        while next_number in done:
            yield done.pop(next_number)
            next_number += 1


def _speaker_transcripts(
    recogniser: SpeakerRecogniser,
    sources: Sequence[Source],
    numbers: Sequence[int],
    details: bool,
    config: SegmentConfig,
) -> Iterator[tuple[int, Transcript]]:
    """The recordings of one speaker, by their numbers."""
    recordings: dict[int, _Heard] = {}
    for number in numbers:
        source = sources[number]
        try:
            recordings[number] = _read_recording(recogniser, source, config)
        except (AudioError, FrontendError) as error:
            yield number, source.failed(error)
    utterances = [
        recording.cepstra[slice(*span)]
        for recording in recordings.values()
        for span in recording.spans
    ]
    results = iter(recogniser.recognise(utterances, details))
    shift = recogniser.frontend_config.frame_shift_ms / 1000
    for number, recording in recordings.items():
        transcribed = []
        for begin, end in recording.spans:
            transcribed.append(next(results).utterance(begin * shift, end * shift))
        yield number, Transcript(sources[number].name, sources[number].key, tuple(transcribed))


def _read_recording(recogniser: SpeakerRecogniser, source: Source, config: SegmentConfig) -> _Heard:
    """Read a recording; a long one is cut at pauses, by energy alone."""
    config_of_cepstra = recogniser.frontend_config
    rate, shift = config_of_cepstra.sampling_rate, config_of_cepstra.frame_shift_ms / 1000
    cepstra = StreamingFrontend(recogniser.frontend)
    energies = StreamingFrontend(Frontend(replace(config_of_cepstra, kind="fbank")))
    segmenter = Segmenter(config, shift)
    parts, segments, samples = [], [], 0
    for block in source.blocks(rate, BLOCK):
        samples += len(block)
        parts.append(cepstra.push(block))
        segments += segmenter.push(energies.push(block))
    parts.append(cepstra.finish())
    segments += segmenter.push(energies.finish()) + segmenter.finish()
    frames = torch.cat(parts)
    if not counted_frames(frames, config_of_cepstra.kind).any():
        logger.warning(NO_SOUND, source.called)
    if samples <= config.longest * rate:
        return _Heard(frames, [(0, len(frames))])
    return _Heard(
        frames, [(segment.start, segment.start + len(segment.features)) for segment in segments]
    )


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
    """Transcribe recordings as `toolkit.decode.transcribe` does, in `jobs` processes.

    Every process loads the bundle once and takes whole speakers, so that the results are those of
    one process. They are given in the order of the sources once all are there.

    Args:
      sources: the recordings; they must be files, since processes are handed them.
      jobs: most processes.
      model, details, device, fast, int8, batch: see `toolkit.decode.transcribe.transcribe`.
    """
    shares = partition_by_speaker(sources, jobs)
    settings = {"details": details, "device": device, "fast": fast, "int8": int8, "batch": batch}
    work = partial(_transcribed, model=model, **settings)
    done: dict[int, Transcript] = {}
    parts = map_in_processes(work, [[sources[n] for n in share] for share in shares], jobs)
    for share, part in zip(shares, parts, strict=True):
        done.update(zip(share, part, strict=True))
    for number in range(len(sources)):
        yield done[number]


def partition_by_speaker(sources: Sequence[Source], jobs: int) -> list[list[int]]:
    """Return the positions of the sources that each process takes, those of a speaker together."""
    shares: list[list[int]] = [[] for _ in range(jobs)]
    for group in sorted(by_speaker(sources), key=len, reverse=True):
        min(shares, key=len).extend(group)
    return [sorted(share) for share in shares if share]


def _transcribed(
    sources: Sequence[Source], model: Path, **settings: bool | str | int
) -> list[Transcript]:
    return list(transcribe(model, sources, **settings))
