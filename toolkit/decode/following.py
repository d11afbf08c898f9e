"""A stream followed piece by piece: what is said of it when, and how far behind."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from torch import Tensor

from toolkit.decode.streaming import Heard, StreamingRecogniser


@dataclass
class Latency:
    """How far a recogniser is behind a stream whose pieces come as they are spoken.

    The clock counts the seconds that processing has taken, and waits where the next piece has not
    been spoken yet: a file that is read at once gives the figures of a microphone.
    """

    audio: float = 0.0
    """Seconds of audio taken."""
    busy: float = 0.0
    """Seconds of processing."""
    clock: float = 0.0
    """Seconds since the stream began."""
    first: float | None = None
    """Between the beginning of speech and the first words shown, in the first utterance with
    both; None if there is none, or the bundle does not say where speech begins."""
    final: float = 0.0
    """Between the end of the last utterance and its words."""
    _shown_at: float | None = None

    @property
    def real_time_factor(self) -> float:
        """Seconds of processing per second of audio."""
        return self.busy / self.audio if self.audio else float("nan")

    def summary(self) -> str:
        """All of it in a sentence."""
        first = "" if self.first is None else f"first words {self.first:.2f} s after speech began, "
        return (
            f"{self.audio:.1f} s of audio, real-time factor {self.real_time_factor:.3f}, {first}"
            f"the last {self.final:.2f} s after the end"
        )

    def note(self, heard: Heard, seconds: float) -> None:
        """Take what was said after one more piece, which took so many seconds."""
        self.audio = max(self.audio, heard.end)
        self.clock = max(self.clock, self.audio) + seconds
        self.busy += seconds
        if heard.text and self._shown_at is None:
            self._shown_at = self.clock
        # Words may be shown before enough frames are speech to say where it began.
        if self.first is None and self._shown_at is not None and heard.onset is not None:
            self.first = self._shown_at - heard.onset
        if heard.final is not None:
            self.final = self.clock - heard.end


def follow(
    blocks: Iterable[Tensor],
    recogniser: StreamingRecogniser,
    now: Callable[[], float],
    latency: Latency,
) -> Iterator[Heard]:
    """Recognise a stream.

    Args:
      blocks: its pieces: samples [S].
      recogniser: new.
      now: the time, in seconds.
      latency: is kept up to date.

    Yields:
      What is new: partial texts that differ from the last, and final ones; the last is final.

    Raises:
      AudioError: the stream is broken.
      FrontendError: it was shorter than one window.
    """
    said = ""
    for block in blocks:
        begin = now()
        heard = recogniser.push(block)
        latency.note(heard, now() - begin)
        if heard.final is not None or heard.text != said:
            yield heard
        said = "" if heard.final is not None else heard.text
    begin = now()
    heard = recogniser.finish()
    latency.note(heard, now() - begin)
    yield heard
