"""What was recognised in a recording."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Word:
    """One recognised word."""

    word: str
    start: float
    """Seconds."""
    end: float
    """Seconds."""
    confidence: float
    """Probability that it is right, within [0, 1]."""

    def later(self, seconds: float) -> "Word":
        """The same word so many seconds later."""
        start, end = round(self.start + seconds, 3), round(self.end + seconds, 3)
        return replace(self, start=start, end=end)


@dataclass(frozen=True)
class Recognised:
    """What was recognised in one utterance."""

    text: str
    """The words, parted by single spaces; empty when no path survives the wider beam either."""
    words: tuple[Word, ...] | None = None
    """With times, in seconds from the utterance's beginning; None when not asked for."""

    def later(self, seconds: float) -> "Recognised":
        """The same in a recording in which the utterance begins after so many seconds."""
        if self.words is None:
            return self
        return replace(self, words=tuple(word.later(seconds) for word in self.words))


@dataclass(frozen=True)
class Utterance:
    """A segment of a recording."""

    start: float
    """Seconds."""
    end: float
    """Seconds."""
    text: str
    """Its words."""
    words: tuple[Word, ...] | None
    """With times in the recording; None when not asked for."""


@dataclass(frozen=True)
class Transcript:
    """What became of one source."""

    name: str
    """Of the source."""
    key: str
    """Of the source."""
    utterances: tuple[Utterance, ...] = ()
    """In the order of time."""
    fault: str = ""
    """What is wrong with the recording, by name; empty when it has been transcribed."""

    @property
    def text(self) -> str:
        """All words, parted by single spaces."""
        return " ".join(one.text for one in self.utterances if one.text)
