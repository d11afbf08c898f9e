"""Recognition of a stream block by block, with latency and real-time factor."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from toolkit.decode.streaming import StreamResult


class Streaming(Protocol):
    """A recogniser of one stream, see `toolkit.decode.streaming.StreamingRecogniser`."""

    @property
    def has_sound(self) -> bool:
        """Whether the stream has been more than digital silence."""

    def push(self, samples: Tensor) -> StreamResult:
        """Take more samples [S]."""

    def finish(self) -> StreamResult:
        """End the stream."""


@dataclass
class Latency:
    """How far a recogniser lags behind a live stream.

    The clock advances by the processing time, and waits for a block that would not have been
    spoken yet. A file that is read at full speed thus gives the figures of a microphone.
    """

    audio: float = 0.0
    """Seconds of audio received."""
    busy: float = 0.0
    """Seconds of processing."""
    clock: float = 0.0
    """Seconds since the stream began, in the time of a live stream."""
    first: float | None = None
    """Seconds from the onset of speech to the first words, in the first utterance that has both;
    None if there is none."""
    final: float = 0.0
    """Seconds from the end of the last utterance to its final words."""
    _shown_at: float | None = None

    @property
    def real_time_factor(self) -> float:
        """Seconds of processing per second of audio."""
        return self.busy / self.audio if self.audio else float("nan")

    def summary(self) -> str:
        """Return the figures in one line."""
        first = "" if self.first is None else f"first words {self.first:.2f} s after speech began, "
        return (
            f"{self.audio:.1f} s of audio, real-time factor {self.real_time_factor:.3f}, {first}"
            f"final words {self.final:.2f} s after the end"
        )

    def update(self, result: StreamResult, seconds: float) -> None:
        """Account for the result after one more block, which took `seconds` to process."""
        self.audio = max(self.audio, result.end)
        self.clock = max(self.clock, self.audio) + seconds
        self.busy += seconds
        if result.text and self._shown_at is None:
            self._shown_at = self.clock
        # Words may be shown before enough frames are speech to detect its onset.
        if self.first is None and self._shown_at is not None and result.onset is not None:
            self.first = self._shown_at - result.onset
        if result.final is not None:
            self.final = self.clock - result.end


def recognise_stream(
    blocks: Iterable[Tensor],
    recogniser: Streaming,
    now: Callable[[], float],
    latency: Latency,
) -> Iterator[StreamResult]:
    """Recognise a stream.

    Args:
      blocks: the audio in blocks of samples [S].
      recogniser: a recogniser that has not read any audio yet.
      now: returns the time in seconds.
      latency: updated after each block.

    Yields:
      Partial results whose text has changed, and final results; the last result is final.

    Raises:
      AudioError: the stream cannot be read.
      FrontendError: it was shorter than one window.
    """
    text = ""
    for block in blocks:
        begin = now()
        result = recogniser.push(block)
        latency.update(result, now() - begin)
        if result.final is not None or result.text != text:
            yield result
        text = "" if result.final is not None else result.text
    begin = now()
    result = recogniser.finish()
    latency.update(result, now() - begin)
    yield result
