"""Writes far-field utterances, in groups."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np

from local.farfield.config import FarfieldConfig
from local.farfield.pools import Pool
from local.farfield.rooms import SAMPLING_RATE, FarfieldError
from local.farfield.selection import FarfieldUtterance
from local.farfield.simulation import simulate
from toolkit.corpus.audio_file import encode_audio
from toolkit.features.audio import AudioError
from toolkit.features.cut_audio import load_cut_audio


@dataclass(frozen=True)
class Group:
    """Utterances of one set that are made in one task, and kept or made again as a whole."""

    folder: Path
    """Folder of their audio."""
    utterances: tuple[FarfieldUtterance, ...]
    """The utterances."""
    config: FarfieldConfig
    """Settings of the simulation."""
    pool: Pool | None = None
    """Rooms and noise; only needed for making."""

    @property
    def done(self) -> Path:
        """The utterances made and failed, as JSON; written after all audio."""
        return self.folder / "done.json"


def make_group(group: Group) -> None:
    """Write the audio of a group and `done.json`: ids, lengths and conditions.

    Raises:
      FarfieldError: naming the utterance that could not be mixed. Unreadable audio is no error; it
        is listed in `done.json`.
    """
    partial = group.folder.with_name(f".{group.folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    made, failed = [], []
    for utterance in group.utterances:
        try:
            made.append(_make(utterance, group, partial))
        except AudioError as error:
            failed.append([utterance.id, " ".join(str(error).split())])
        except Exception as error:
            raise FarfieldError(f"{utterance.id}: {error!r} during the simulation") from error
    content = json.dumps({"made": made, "failed": failed}, indent=1) + "\n"
    (partial / group.done.name).write_text(content, encoding="utf-8")
    shutil.rmtree(group.folder, ignore_errors=True)
    partial.rename(group.folder)


def file_name(id: str, part: str, encoding: str) -> str:
    """Return the file name of an utterance; `part` is empty for what its set hears."""
    return f"{quote(id, safe='')}{'.' if part else ''}{part}.{encoding.lower()}"


def _make(utterance: FarfieldUtterance, group: Group, folder: Path) -> dict:
    """Write the audio of one utterance; return its entry in `done.json`."""
    dry = load_cut_audio(utterance.source, SAMPLING_RATE).numpy()
    heard, mixture, custom = simulate(utterance, dry, group.config, group.pool)
    files = {"": heard[None]}
    if utterance.array:
        files["raw"] = mixture.microphones[:1]
        files["array"] = np.concatenate([mixture.microphones, mixture.playback[None]])
        files["speech"] = mixture.speech
        files |= {} if mixture.echo is None else {"echo": mixture.echo}
    for part, channels in files.items():
        encoding = group.config.encoding
        samples = np.clip(np.rint(channels.T * 32768), -32768, 32767).astype(np.int16)
        path = folder / file_name(utterance.id, part, encoding)
        path.write_bytes(encode_audio(samples, SAMPLING_RATE, encoding))
    channels = {part: len(own) for part, own in files.items()}
    return {"id": utterance.id, "samples": len(dry), "channels": channels, "custom": custom}
