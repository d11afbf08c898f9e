"""What recognition gives: words with times and confidences, utterances, transcripts."""

from dataclasses import dataclass, replace

from toolkit.align.times import TimedToken


@dataclass(frozen=True)
class Recognised:
    """The recognition result of one utterance."""

    text: str
    """The words, separated by single spaces; empty when no path survives the wider beam either."""
    words: tuple[TimedToken, ...] | None = None
    """The words with times in seconds from the start of the utterance; None when not requested."""

    def within(self, start: float, end: float) -> "Recognised":
        """Return the result with word times in those of the recording, between start and end.

        The last row of scores may stand for frames behind the utterance, so that words end with it.
        """
        if self.words is None:
            return self
        return replace(self, words=tuple(_clip(_shift(word, start), end) for word in self.words))

    def utterance(self, start: float, end: float) -> "Utterance":
        """Return the result as a segment of a recording, with word times `within` it."""
        start, end = round(start, 3), round(end, 3)
        return Utterance(start, end, self.text, self.within(start, end).words)


@dataclass(frozen=True)
class Utterance:
    """A segment of a recording."""

    start: float
    """Seconds."""
    end: float
    """Seconds."""
    text: str
    """Its words, separated by single spaces."""
    words: tuple[TimedToken, ...] | None
    """The words with times in seconds of the recording; None when not requested."""


@dataclass(frozen=True)
class Transcript:
    """The transcript of one recording, or why there is none."""

    name: str
    """Name of the recording, see `Source.name`."""
    key: str
    """Path of its result without suffix, see `Source.key`."""
    utterances: tuple[Utterance, ...] = ()
    """In order of time."""
    fault: str = ""
    """Error message that names the recording; empty when it has been transcribed."""

    @property
    def text(self) -> str:
        """All words, separated by single spaces."""
        return " ".join(utterance.text for utterance in self.utterances if utterance.text)

    def in_lower_case(self) -> "Transcript":
        """Return the transcript with all words in lower case, as for subtitles."""
        return replace(self, utterances=tuple(map(_in_lower_case, self.utterances)))


def _shift(word: TimedToken, seconds: float) -> TimedToken:
    return word._replace(
        start_s=round(word.start_s + seconds, 3), end_s=round(word.end_s + seconds, 3)
    )


def _clip(word: TimedToken, end: float) -> TimedToken:
    end = round(end, 3)
    return word._replace(start_s=min(word.start_s, end), end_s=min(word.end_s, end))


def _in_lower_case(utterance: Utterance) -> Utterance:
    words = utterance.words and tuple(w._replace(token=w.token.lower()) for w in utterance.words)
    return replace(utterance, text=utterance.text.lower(), words=words)
