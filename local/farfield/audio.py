"""Groups of far-field utterances: drawn, mixed, written."""

import json
import shutil
import zlib
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np
import soundfile

from local.farfield.config import FarfieldConfig
from local.farfield.mix import Heard, hear
from local.farfield.parts import Wanted
from local.farfield.pools import Pool
from local.farfield.rooms import SAMPLING_RATE, FarfieldError
from toolkit.features.audio import AudioError
from toolkit.features.cut_audio import load_cut_audio


@dataclass(frozen=True)
class Group:
    """Utterances of one set that are made one after the other, and kept as one."""

    folder: Path
    """Where their audio goes."""
    wanted: tuple[Wanted, ...]
    """The utterances."""
    config: FarfieldConfig
    """How they are made."""
    pool: Pool | None = None
    """Rooms and noise; only needed for making."""

    @property
    def done(self) -> Path:
        """What is known of the utterances; there as soon as all audio is."""
        return self.folder / "done.json"


def make_group(group: Group) -> None:
    """Write the audio of a group and `done.json`: ids, lengths and what each was given.

    Raises:
      FarfieldError: naming the utterance that could not be mixed. Unreadable audio is no error; it
        is listed in `done.json`.
    """
    partial = group.folder.with_name(f".{group.folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    made, failed = [], []
    for wanted in group.wanted:
        try:
            made.append(_make(wanted, group, partial))
        except AudioError as error:
            failed.append([wanted.id, " ".join(str(error).split())])
        except Exception as error:
            raise FarfieldError(f"{wanted.id}: {error!r} when put into a room") from error
    content = json.dumps({"made": made, "failed": failed}, indent=1) + "\n"
    (partial / group.done.name).write_text(content, encoding="utf-8")
    shutil.rmtree(group.folder, ignore_errors=True)
    partial.rename(group.folder)


def file_name(id: str, part: str, encoding: str) -> str:
    """Name the file of an utterance; `part` is empty for the one microphone of its set."""
    return f"{quote(id, safe='')}{'.' if part else ''}{part}.{encoding.lower()}"


def _make(wanted: Wanted, group: Group, folder: Path) -> dict:
    """Write the audio of one utterance; give what is known of it."""
    dry = load_cut_audio(wanted.source, SAMPLING_RATE).numpy()
    heard, custom = _hear(wanted, dry, group.config, group.pool)
    files = {"": heard.microphones[:1]}
    if wanted.array:
        files["array"] = np.concatenate([heard.microphones, heard.playback[None]])
        files["speech"] = heard.speech
        files |= {} if heard.echo is None else {"echo": heard.echo}
    for part, channels in files.items():
        encoding = group.config.encoding
        samples = np.clip(np.rint(channels.T * 32768), -32768, 32767).astype(np.int16)
        path = folder / file_name(wanted.id, part, encoding)
        soundfile.write(path, samples, SAMPLING_RATE, format=encoding, subtype="PCM_16")
    channels = {part: len(own) for part, own in files.items()}
    return {"id": wanted.id, "samples": len(dry), "channels": channels, "custom": custom}


def _hear(
    wanted: Wanted, dry: np.ndarray, config: FarfieldConfig, pool: Pool
) -> tuple[Heard, dict]:
    """Draw a room, noise, playback and levels by the utterance's id, and mix."""
    rng = np.random.default_rng([config.seed, zlib.crc32(wanted.id.encode())])
    names = list(config.placements)
    name = wanted.placement or names[int(rng.integers(len(names)))]
    placement = config.placements[name]
    room = pool.room(name, int(rng.integers(pool.rooms)))
    talker = int(rng.integers(len(room.talkers)))
    microphones = slice(None if wanted.array else 1)
    noise = _excerpt(pool.noise, len(dry) + room.noise.shape[1], rng)
    playback = _excerpt(pool.playback, len(dry), rng)
    plays = bool(rng.random() < placement.playback_share)
    snr, echo = rng.uniform(*placement.snr_db), rng.uniform(*placement.echo_db)
    heard = hear(
        dry,
        room.talkers[talker, microphones],
        noise,
        room.noise[microphones],
        playback if plays else None,
        room.echo[microphones],
        snr_db=snr,
        echo_db=echo,
        level_db=rng.uniform(*config.level_dbfs),
        rng=rng,
    )
    custom = {"placement": name, "t60": room.t60, "snr_db": round(snr, 2)}
    return heard, custom | ({"echo_db": round(echo, 2)} if heard.echo is not None else {})


def _excerpt(sounds: np.ndarray, length: int, rng: np.random.Generator) -> np.ndarray:
    """Take part of a sound, which begins again where it is too short."""
    row = sounds[int(rng.integers(len(sounds)))]
    start = int(rng.integers(len(row)))
    return np.take(row, np.arange(start, start + length), mode="wrap")
