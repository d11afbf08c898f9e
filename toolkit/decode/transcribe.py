"""Transcription of recordings of any length with a recogniser bundle."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from toolkit.decode.bundle.folder import find_system, load_recogniser
from toolkit.decode.bundle.recogniser import Recogniser
from toolkit.decode.bundle.speaker import SpeakerRecogniser
from toolkit.decode.segmenter import Segment, SegmentConfig, Segmenter
from toolkit.decode.sources import Source
from toolkit.decode.speakers import transcribe_speakers
from toolkit.decode.transcript import Transcript, Utterance
from toolkit.features.audio import AudioError
from toolkit.features.cmn_state import CmnState
from toolkit.features.frontend import FrontendError
from toolkit.features.low_frame_rate import LOW_RATE_FACTOR
from toolkit.features.stream import StreamingFrontend

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
) -> Iterator[Transcript]:
    """Transcribe recordings, in the order given.

    A recording is one utterance if it is no longer than `SegmentConfig.longest`, otherwise it is
    cut into segments, the speaker's utterances in order of time. A network on log-mel features
    normalises by the running mean of a speaker's recordings so far, and never holds a long one in
    memory; a system that recognises by speaker hears all recordings of a speaker before it gives
    the first result (`Source.speaker`; where there is none, the recording is a speaker). For a
    broken recording the transcript holds the fault, and the others are still transcribed.

    Args:
      model: a bundle, such as exp/demo/final.
      sources: the recordings.
      details: find word times and confidences too.
      config: where long recordings are cut; None: the default.
      device: where the network computes.
      fast: leave out rescoring with a larger language model.
      int8: compute in 8 bits, see `toolkit.decode.bundle.folder.load_recogniser`.

    Raises:
      BundleError: `model` is not a bundle, or has no senones, which `details` needs.
    """
    recogniser = load_recogniser(find_system(model), device, fast, int8)
    config = config or SegmentConfig()
    if details:
        recogniser.word_aligner  # noqa: B018 - fails now rather than at the first word
    if isinstance(recogniser, SpeakerRecogniser):
        yield from transcribe_speakers(recogniser, sources, details, config)
        return
    means: dict[str, CmnState] = {}
    for source in sources:
        try:
            utterances = tuple(_utterances(recogniser, source, details, config, means))
            yield Transcript(source.name, source.key, utterances)
        except (AudioError, FrontendError) as error:
            yield source.failed(error)


def _utterances(
    recogniser: Recogniser,
    source: Source,
    details: bool,
    config: SegmentConfig,
    means: dict[str, CmnState],
) -> Iterator[Utterance]:
    """Recognise a recording; `means` holds each speaker's mean, which it moves on."""
    shift = recogniser.frontend_config.frame_shift_ms / 1000
    empty = CmnState.empty(recogniser.frontend_config.dimension)
    mean = empty if source.speaker is None else means.get(source.speaker, empty)
    blocks = source.blocks(recogniser.frontend_config.sampling_rate, BLOCK)
    for segment in _segments(recogniser, blocks, config):
        start = segment.start * shift
        found = recogniser.recognise_features(segment.features, mean, details).later(start)
        mean = mean.after(segment.features)
        yield Utterance(
            round(start, 3),
            round(start + len(segment.features) * shift, 3),
            found.text,
            found.words,
        )
    if source.speaker is not None:
        means[source.speaker] = mean


def _segments(
    recogniser: Recogniser, blocks: Iterator[Tensor], config: SegmentConfig
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
        mean = mean.after(features)
        yield from segmenter.push(features, silence)
    yield from segmenter.finish()


def _features(
    recogniser: Recogniser, head: list[Tensor], blocks: Iterator[Tensor]
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
