"""espeak-ng through ctypes: text in, samples and word times out, the same bytes every time."""

import _ctypes
import ctypes
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from local.synthetic.espeak_words import Event, SpokenWord, locate
from toolkit.errors import ToolkitError

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


class SpeechSynthesisError(ToolkitError):
    """espeak-ng is missing, lacks a voice, or failed on a text."""


class _Value(ctypes.Union):
    _fields_ = (
        ("number", ctypes.c_int),
        ("name", ctypes.c_char_p),
        ("string", ctypes.c_char * 8),
    )


class _Event(ctypes.Structure):
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

    espeak-ng keeps oscillator phases, flutter and echo between texts, even over its own
    `espeak_Terminate`, so that a text's samples would depend on what was spoken before it. The
    library is unloaded after each text (10 ms) to make the result a function of the arguments.

    Raises SpeechSynthesisError when the wheel `espeakng-loader` or the voice is missing.
    """
    samples, events = _synthesise(text, voice)

    def phonemes_of(word: str) -> list[str]:
        return [event.phoneme for event in _synthesise(word, voice)[1] if event.is_sound]

    return Speech(samples, locate(text, events, phonemes_of))


def _synthesise(text: str, voice: Voice) -> tuple[np.ndarray, list[Event]]:
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
            raise SpeechSynthesisError(f"espeak-ng failed on {text!r} (status {status})")
    return np.concatenate(chunks), events


@contextmanager
def _library() -> Iterator[tuple[ctypes.CDLL, list[np.ndarray], list[Event]]]:
    """Load and initialise espeak-ng; unload it afterwards."""
    try:
        import espeakng_loader
    except ImportError as error:
        raise SpeechSynthesisError(
            "the demo corpus is spoken by espeak-ng: pip install espeakng-loader"
        ) from error
    library = ctypes.CDLL(str(espeakng_loader.get_library_path()))
    chunks: list[np.ndarray] = []
    events: list[Event] = []

    def collect(samples: "ctypes._Pointer", count: int, found: "ctypes._Pointer") -> int:
        if samples and count > 0:
            chunks.append(np.ctypeslib.as_array(samples, (count,)).copy())
        index = 0
        while (event := found[index]).type != EVENT_LIST_TERMINATED:
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
                raise SpeechSynthesisError(f"espeak-ng did not start from {data} ({rate})")
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
        raise SpeechSynthesisError(f"espeak-ng's data is not in {data}: reinstall espeakng-loader")
    if len(str(data).encode()) <= MAX_DATA_PATH:
        yield data
        return
    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder) / "espeak-ng-data"
        link.symlink_to(data)
        yield link
