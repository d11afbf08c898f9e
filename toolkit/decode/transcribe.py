"""Audio files to text with a bundle."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolkit.decode.recogniser import Recogniser
from toolkit.features.audio import AudioError, load_audio
from toolkit.features.frontend import FrontendError


@dataclass(frozen=True)
class Transcript:
    """What became of one file."""

    path: Path
    """The audio file."""
    text: str | None
    """Its words; None when the file is broken."""
    fault: str = ""
    """What is wrong with the file, which it names."""


def transcribe(model: Path, audio: Sequence[Path]) -> Iterator[Transcript]:
    """Transcribe audio files one by one, in the order given.

    Other sampling rates and channel counts are converted. A broken file yields its fault; the
    others are transcribed all the same.

    Args:
      model: a bundle, such as exp/demo/final.
      audio: the files.

    Raises:
      BundleError: `model` is not a bundle.
    """
    recogniser = Recogniser(model)
    for path in audio:
        try:
            samples = load_audio(path, recogniser.frontend_config.sampling_rate)
            yield Transcript(path, recogniser.recognise(samples))
        except AudioError as error:
            yield Transcript(path, None, str(error))
        except FrontendError as error:
            yield Transcript(path, None, f"{path}: {error}")
