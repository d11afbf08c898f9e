"""Transcription of recordings of any length with a recogniser bundle."""

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from toolkit.decode.bundle.ctc.recogniser import CtcRecogniser
from toolkit.decode.bundle.folder import find_system, load_recogniser
from toolkit.decode.bundle.recogniser import Recogniser
from toolkit.decode.bundle.speaker import SpeakerRecogniser
from toolkit.decode.segmenter import Segment, SegmentConfig, Segmenter
from toolkit.decode.sources import Source, role_of
from toolkit.decode.speakers import NO_SOUND, transcribe_speakers
from toolkit.decode.transcript import Transcript, Utterance
from toolkit.errors import ToolkitError
from toolkit.features.audio import AudioError
from toolkit.features.cmn_state import CmnState
from toolkit.features.frontend import FrontendError
from toolkit.features.low_frame_rate import LOW_RATE_FACTOR
from toolkit.features.silence import counted_frames
from toolkit.features.stream import StreamingFrontend

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
      int8: compute in 8 bits, see `toolkit.decode.bundle.folder.load_recogniser`.
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
    found: dict[int, list[Utterance]] = defaultdict(list)
    for run in _runs(_hear(recogniser, sources, config), batch):
        pieces = [event for event in run if isinstance(event, _Piece)]
        for piece, utterance in zip(pieces, _recognise(recogniser, pieces, details), strict=True):
            found[piece.source].append(utterance)
        for event in run:
            if isinstance(event, _End):
                source, utterances = sources[event.source], found.pop(event.source, [])
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


def _hear(
    recogniser: Recogniser | CtcRecogniser, sources: Sequence[Source], config: SegmentConfig
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
    recogniser: Recogniser | CtcRecogniser, pieces: Sequence[_Piece], details: bool
) -> Iterator[Utterance]:
    """Recognise utterances in one batch."""
    shift = recogniser.frontend_config.frame_shift_ms / 1000
    batch = [(piece.segment.features, piece.state) for piece in pieces]
    for piece, result in zip(pieces, recogniser.recognise_batch(batch, details), strict=True):
        start = piece.segment.start * shift
        yield result.utterance(start, start + len(piece.segment.features) * shift)


def _segments(
    recogniser: Recogniser | CtcRecogniser, blocks: Iterator[Tensor], config: SegmentConfig
) -> Iterator[Segment]:
    """Yield the whole recording if it is short, otherwise its segments."""
    most = config.longest * recogniser.frontend_config.sampling_rate
    head: list[Tensor] = []
    while sum(map(len, head)) <= most:
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
    recogniser: Recogniser | CtcRecogniser, head: list[Tensor], blocks: Iterator[Tensor]
) -> Iterator[Tensor]:
    stream = StreamingFrontend(recogniser.frontend)
    while head:
        yield stream.push(head.pop(0))
    for block in blocks:
        yield stream.push(block)
    yield stream.finish()


def _silence(recogniser: Recogniser, features: Tensor, mean: CmnState) -> Tensor | None:
    """Return the posteriors [T] of silence, the block scored as an utterance of its own."""
    if recogniser.silence is None or not len(features):
        return None
    scores = recogniser.model.log_likelihoods(features, mean)
    return recogniser.silence(scores).repeat_interleave(LOW_RATE_FACTOR)[: len(features)]
