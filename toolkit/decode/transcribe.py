"""Recordings of any length to text with a bundle."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from toolkit.decode.recogniser import Recogniser
from toolkit.decode.segmenter import Segment, SegmentConfig, Segmenter
from toolkit.decode.sources import Source
from toolkit.decode.transcript import Transcript, Utterance
from toolkit.features.audio import AudioError
from toolkit.features.frontend import FrontendError
from toolkit.features.lfr import LOW_RATE_FACTOR
from toolkit.features.mean_state import MeanState
from toolkit.features.stream import StreamingFrontend

BLOCK = 20.0
"""Seconds of audio that are read, and asked for silence, at a time."""


def transcribe(
    model: Path,
    sources: Iterable[Source],
    details: bool = False,
    config: SegmentConfig | None = None,
) -> Iterator[Transcript]:
    """Transcribe recordings one by one, in the order given.

    A recording is a speaker not heard before, and one utterance if it is no longer than
    `SegmentConfig.longest`. Else it is cut into segments, which are the speaker's utterances in
    turn; it is never in memory whole. One that is broken yields its fault; the others are
    transcribed all the same.

    Args:
      model: a bundle, such as exp/demo/final.
      sources: the recordings.
      details: find times and confidences of words, too.
      config: how long recordings are cut; None: the default.

    Raises:
      BundleError: `model` is not a bundle, or lacks what the details need.
    """
    recogniser, config = Recogniser(model), config or SegmentConfig()
    if details:
        recogniser.details  # noqa: B018 - fails now rather than at the first word
    for source in sources:
        try:
            utterances = tuple(_utterances(recogniser, source, details, config))
            yield Transcript(source.name, source.key, utterances)
        except AudioError as error:
            yield Transcript(source.name, source.key, fault=str(error))
        except FrontendError as error:
            yield Transcript(source.name, source.key, fault=f"{source.name}: {error}")


def _utterances(
    recogniser: Recogniser, source: Source, details: bool, config: SegmentConfig
) -> Iterator[Utterance]:
    shift = recogniser.frontend_config.frame_shift_ms / 1000
    mean = MeanState.empty(recogniser.frontend_config.dimension)
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


def _segments(
    recogniser: Recogniser, blocks: Iterator[Tensor], config: SegmentConfig
) -> Iterator[Segment]:
    """The whole recording if it is short, else its segments."""
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
    mean = MeanState.empty(recogniser.frontend_config.dimension)
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


def _silence(recogniser: Recogniser, features: Tensor, mean: MeanState) -> Tensor | None:
    """[T] the posterior of silence at every frame, each block scored as an utterance."""
    if recogniser.silence is None or not len(features):
        return None
    scores = recogniser.model.log_likelihoods(features, mean)
    return recogniser.silence(scores).repeat_interleave(LOW_RATE_FACTOR)[: len(features)]
