"""Transcription by speaker: all recordings of a speaker are heard before any is recognised."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from toolkit.decode.bundle.speaker import SpeakerRecogniser
from toolkit.decode.segmenter import SegmentConfig, Segmenter
from toolkit.decode.sources import Source, by_speaker
from toolkit.decode.transcript import Transcript
from toolkit.features.audio import AudioError
from toolkit.features.frontend import Frontend, FrontendError
from toolkit.features.silence import counted_frames
from toolkit.features.stream import StreamingFrontend

logger = logging.getLogger(__name__)
NO_SOUND = "%s: nothing but digital silence, so it has no words"
BLOCK = 20.0
"""Seconds of audio that are read at a time."""


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
    given = 0
    for numbers in by_speaker(sources):
        done.update(_transcribed(recogniser, sources, numbers, details, config))
        while given in done:
            yield done.pop(given)
            given += 1


def _transcribed(
    recogniser: SpeakerRecogniser,
    sources: Sequence[Source],
    numbers: Sequence[int],
    details: bool,
    config: SegmentConfig,
) -> Iterator[tuple[int, Transcript]]:
    """The recordings of one speaker, by their numbers."""
    heard: dict[int, _Heard] = {}
    for number in numbers:
        source = sources[number]
        try:
            heard[number] = _hear(recogniser, source, config)
        except (AudioError, FrontendError) as error:
            yield number, source.failed(error)
    utterances = [one.cepstra[slice(*span)] for one in heard.values() for span in one.spans]
    results = iter(recogniser.recognise(utterances, details))
    shift = recogniser.frontend_config.frame_shift_ms / 1000
    for number, one in heard.items():
        found = []
        for begin, end in one.spans:
            found.append(next(results).utterance(begin * shift, end * shift))
        yield number, Transcript(sources[number].name, sources[number].key, tuple(found))


def _hear(recogniser: SpeakerRecogniser, source: Source, config: SegmentConfig) -> _Heard:
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
    return _Heard(frames, [(one.start, one.start + len(one.features)) for one in segments])
