"""What recognition gives: words with times and confidences, utterances, transcripts."""

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
    """Probability that the word is right, within [0, 1]."""

    def later(self, seconds: float) -> "Word":
        """Return the word with its times moved by `seconds`."""
        start, end = round(self.start + seconds, 3), round(self.end + seconds, 3)
        return replace(self, start=start, end=end)


@dataclass(frozen=True)
class Recognised:
    """The recognition result of one utterance."""

    text: str
    """The words, separated by single spaces; empty when no path survives the wider beam either."""
    words: tuple[Word, ...] | None = None
    """The words with times in seconds from the start of the utterance; None when not requested."""

    def later(self, seconds: float) -> "Recognised":
        """Return the result with word times moved by `seconds`, the start of the utterance."""
        if self.words is None:
            return self
        return replace(self, words=tuple(word.later(seconds) for word in self.words))

    def within(self, start: float, end: float) -> "Recognised":
        """Return the result with word times in those of the recording, between start and end.

        The last row of scores may stand for frames behind the utterance, so that words end with it.
        """
        moved, end = self.later(start), round(end, 3)
        if moved.words is None:
            return moved
        words = (replace(w, start=min(w.start, end), end=min(w.end, end)) for w in moved.words)
        return replace(moved, words=tuple(words))

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
    words: tuple[Word, ...] | None
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
        return " ".join(one.text for one in self.utterances if one.text)

    def in_lower_case(self) -> "Transcript":
        """Return the transcript with all words in lower case, as for subtitles."""
        return replace(self, utterances=tuple(map(_in_lower_case, self.utterances)))


def _in_lower_case(one: Utterance) -> Utterance:
    words = one.words and tuple(replace(word, word=word.word.lower()) for word in one.words)
    return replace(one, text=one.text.lower(), words=words)
