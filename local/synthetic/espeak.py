"""espeak-ng through ctypes: text in, samples and word times out, the same bytes every time.

Words are timed from word and phoneme events. A word event alone does not give the times:

- It comes before the pause that espeak-ng puts in front of many sounds. Before a consonant between
  words, this pause is the closure of a stop or about 10 ms, and belongs to the word; before a vowel
  it is a gap of about 40 ms; after silence it prolongs the silence.
- An L, M, N or R before a vowel is spoken while the vowel begins. If the two belong to different
  words ("an apple"), the word event comes before the consonant, and only the vowel's own event
  comes after both.
- Some pairs ("in the") are spoken as one word and have one event, and some words have a second
  event in their middle ("too much": after the T).
"""

import _ctypes
import ctypes
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from toolkit.errors import ToolkitError
from toolkit.score.alignment import align

SONORANT_SHARE = 0.6
"""Position of a word boundary between an L, M, N or R and the vowel after it, as a share of the
time between their events. The spectrum changes most at 0.57 (N), 0.70 (M), 0.51 (NG), 0.55 (L) and
0.52 (R), in the median over all voices of the demo corpus."""

_SONORANTS = frozenset({"l", "m", "n", "N", "r"})

_STRESS = "',%="

_VOWELS = frozenset("aeiouAEIOUV03@")

SAMPLING_RATE = 22050
"""Rate of espeak-ng's output in Hz."""

AUDIO_OUTPUT_SYNCHRONOUS = 2

CHARS_UTF8 = 1

POSITION_CHARACTER = 1

INITIALIZE_PHONEME_EVENTS = 1

EVENT_LIST_TERMINATED = 0

EVENT_WORD = 1

EVENT_PHONEME = 7

RATE, PITCH, RANGE = 1, 3, 4

MAX_DATA_PATH = 120


class WordTimesError(ToolkitError):
    """The events of a text do not give the times of all its words."""


@dataclass(frozen=True)
class Event:
    """A word event (with a position) or a phoneme event (with a phoneme) of espeak-ng."""

    sample: int
    """Index of the output sample."""
    position: int = -1
    """Index of the character in the text where the word begins; -1 for a phoneme event."""
    phoneme: str = ""
    """espeak-ng's mnemonic; pauses begin with an underscore. Empty for a word event."""

    @property
    def is_sound(self) -> bool:
        """Whether this is a phoneme other than a pause."""
        return bool(self.phoneme) and not self.phoneme.startswith("_")

    @property
    def kind(self) -> str:
        """The consonant, or "V" for any vowel, since vowels change in unstressed words."""
        unstressed = self.phoneme.lstrip(_STRESS)
        return "V" if unstressed[0] in _VOWELS else unstressed.rstrip("#2-")


@dataclass(frozen=True)
class SpokenWord:
    """A word of a text and its time."""

    text: str
    """The word as written, with adjacent punctuation."""
    start: int
    """First sample."""
    end: int
    """One past the last sample: where the next word or a pause begins. The echo of some voices
    (up to 70 ms) is not included."""


@dataclass
class _Group:
    """The sounds from one word event to the next: of one word, or of several spoken as one."""

    words: list[str]
    sounds: list[Event]
    start: int
    end: int


def locate(
    text: str, events: list[Event], phonemes_of: Callable[[str], list[str]]
) -> list[SpokenWord]:
    """Find the times of the words of `text`.

    A word starts with its first sound, which for a stop is its closure and after a pause its burst.
    It ends where the next word or a pause begins.

    Args:
      events: events of the whole text in order.
      phonemes_of: the phonemes of a word spoken alone, to divide words that were spoken as one.

    Raises:
      WordTimesError: a word has no sound of its own.
    """
    words = []
    for group in _groups(text, events):
        starts = [group.start, *_inner_starts(group, phonemes_of)]
        for word, start, end in zip(group.words, starts, [*starts[1:], group.end], strict=True):
            words.append(SpokenWord(word, start, end))
    return words


def _groups(text: str, events: list[Event]) -> list[_Group]:
    """Group the sounds by the words that they belong to."""
    heads = [
        index
        for index, event in enumerate(events)
        if event.position == 0 or (event.position > 0 and text[event.position - 1].isspace())
    ]
    groups: list[_Group] = []
    preceding = None  # the sound that the word follows without a pause
    for head, stop in zip(heads, [*heads[1:], len(events)], strict=True):
        phonemes = [event for event in events[head:stop] if event.phoneme]
        sounds = [event for event in phonemes if event.is_sound]
        until = events[stop].position if stop < len(events) else len(text)
        words = text[events[head].position : until].split()
        if not sounds:
            raise WordTimesError(f"espeak-ng produced no sound for {' '.join(words)!r} in {text!r}")
        pauses = phonemes[phonemes.index(sounds[-1]) + 1 :]
        start, silence = _onset(events[head], sounds[0], preceding)
        if preceding is not None:
            groups[-1].end = silence
        groups.append(_Group(words, sounds, start, pauses[0].sample if pauses else start))
        preceding = None if pauses else sounds[-1]
    return groups


def _onset(word: Event, first: Event, preceding: Event | None) -> tuple[int, int]:
    """Return the samples where a word begins and where the sound before it ends.

    Args:
      word: the word's own event.
      first: the word's first sound.
      preceding: the sound before the word; None at the beginning or after a pause.
    """
    if preceding is None:
        return first.sample, first.sample
    # A consonant begins with its closure, which espeak-ng's word event marks.
    if first.kind != "V":
        return word.sample, word.sample
    # From a sonorant into a vowel there is no silence: the boundary lies within the glide.
    if preceding.kind in _SONORANTS:
        shared = preceding.sample + round(SONORANT_SHARE * (first.sample - preceding.sample))
        return shared, shared
    return first.sample, word.sample


def _inner_starts(group: _Group, phonemes_of: Callable[[str], list[str]]) -> list[int]:
    """Find the starts of the later words of a group, by aligning it to the words spoken alone."""
    if len(group.words) == 1:
        return []
    # Phoneme kinds of each word spoken alone, and for each such phoneme the index of its word.
    alone = [[Event(0, phoneme=p).kind for p in phonemes_of(word)] for word in group.words]
    owners = iter([number for number, kinds in enumerate(alone) for _ in kinds])
    sounds = iter(zip(group.sounds, [None, *group.sounds], strict=False))
    starts: dict[int, int] = {}
    for expected, spoken in align(
        [kind for kinds in alone for kind in kinds], [sound.kind for sound in group.sounds]
    ):
        number = next(owners) if expected is not None else None
        sound, preceding = next(sounds) if spoken is not None else (None, None)
        # The first aligned sound of a word is its start.
        if number is not None and sound is not None:
            starts.setdefault(number, _onset(sound, sound, preceding)[0])
    for number, word in enumerate(group.words[1:], start=1):
        if number not in starts:
            raise WordTimesError(
                f"{word!r} has no sound of its own in espeak-ng's output for "
                f"{' '.join(group.words)!r}"
            )
    return [starts[number] for number in range(1, len(group.words))]


class SpeechSynthesisError(ToolkitError):
    """espeak-ng is missing, lacks a voice, or failed on a text."""


class _Value(ctypes.Union):
    """The C union `id` of espeak-ng's events."""

    _fields_ = (
        ("number", ctypes.c_int),
        ("name", ctypes.c_char_p),
        ("string", ctypes.c_char * 8),
    )


class _Event(ctypes.Structure):
    """The C struct of espeak-ng's events."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", _Value),
    )


_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
)


@dataclass(frozen=True)
class Voice:
    """The settings of a voice."""

    name: str
    """espeak-ng's voice and variant, such as "en-us+f3"."""
    pitch: int = 50
    """0 to 99."""
    pitch_range: int = 50
    """0 (monotone) to 100."""
    rate: int = 165
    """Words per minute, 80 to 450."""


@dataclass(frozen=True)
class Speech:
    """One synthesised text."""

    samples: np.ndarray
    """int16[S] at `SAMPLING_RATE`."""
    words: list[SpokenWord]
    """The words of the text in order, with adjacent punctuation."""


def speak(text: str, voice: Voice) -> Speech:
    """Synthesise `text` in a freshly loaded library.

    espeak-ng keeps oscillator phases, flutter and echo between texts, even across calls of
    `espeak_Terminate`, so that a text's samples would depend on what was spoken before it. The
    library is unloaded after each text (10 ms) to make the result a function of the arguments.

    Raises SpeechSynthesisError when the wheel `espeakng-loader` or the voice is missing.
    """
    samples, events = _synthesise(text, voice)

    def phonemes_of(word: str) -> list[str]:
        return [event.phoneme for event in _synthesise(word, voice)[1] if event.is_sound]

    return Speech(samples, locate(text, events, phonemes_of))


def _synthesise(text: str, voice: Voice) -> tuple[np.ndarray, list[Event]]:
    """Synthesise a text; return the samples and the events."""
    with _library() as (library, chunks, events):
        if library.espeak_SetVoiceByName(voice.name.encode()) != 0:
            raise SpeechSynthesisError(f"espeak-ng has no voice {voice.name!r}")
        for parameter, value in ((RATE, voice.rate), (PITCH, voice.pitch)):
            library.espeak_SetParameter(parameter, value, 0)
        library.espeak_SetParameter(RANGE, voice.pitch_range, 0)
        data = text.encode() + b"\0"
        status = library.espeak_Synth(
            data, len(data), 0, POSITION_CHARACTER, 0, CHARS_UTF8, None, None
        )
        if status != 0 or not chunks:
            raise SpeechSynthesisError(
                f"espeak-ng could not synthesise the text {text!r} (status {status})"
            )
    return np.concatenate(chunks), events


@contextmanager
def _library() -> Iterator[tuple[ctypes.CDLL, list[np.ndarray], list[Event]]]:
    """Load and initialise espeak-ng; unload it afterwards."""
    try:
        import espeakng_loader
    except ImportError as error:
        raise SpeechSynthesisError(
            "the demo corpus is synthesised with espeak-ng, which is not installed: run "
            "`pip install espeakng-loader`"
        ) from error
    library = ctypes.CDLL(str(espeakng_loader.get_library_path()))
    chunks: list[np.ndarray] = []
    events: list[Event] = []

    def collect(samples: "ctypes._Pointer", count: int, event_list: "ctypes._Pointer") -> int:
        if samples and count > 0:
            chunks.append(np.ctypeslib.as_array(samples, (count,)).copy())
        index = 0
        while (event := event_list[index]).type != EVENT_LIST_TERMINATED:
            if event.type == EVENT_WORD:
                events.append(Event(event.sample, position=event.text_position - 1))
            elif event.type == EVENT_PHONEME:
                events.append(Event(event.sample, phoneme=event.id.string.decode()))
            index += 1
        return 0

    callback = _CALLBACK(collect)
    try:
        with _short_path(Path(espeakng_loader.get_data_path())) as data:
            rate = library.espeak_Initialize(
                AUDIO_OUTPUT_SYNCHRONOUS, 0, str(data).encode(), INITIALIZE_PHONEME_EVENTS
            )
            if rate != SAMPLING_RATE:
                raise SpeechSynthesisError(
                    f"espeak-ng could not be initialised with the data in {data} (return value "
                    f"{rate})"
                )
            library.espeak_SetSynthCallback(callback)
            library.espeak_ng_SetRandSeed(ctypes.c_long(1))
            yield library, chunks, events
            library.espeak_Terminate()
    finally:
        _ctypes.dlclose(library._handle)


@contextmanager
def _short_path(data: Path) -> Iterator[Path]:
    """Link the data folder to a short path, if its own does not fit into espeak-ng's 160 bytes.

    With a path that it cannot use, espeak-ng ends the process instead of returning an error.
    """
    if not (data / "phontab").is_file():
        raise SpeechSynthesisError(
            f"{data} does not contain the data of espeak-ng: reinstall the package espeakng-loader"
        )
    if len(str(data).encode()) <= MAX_DATA_PATH:
        yield data
        return
    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder) / "espeak-ng-data"
        link.symlink_to(data)
        yield link
