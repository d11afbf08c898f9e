"""The offline demo corpus: espeak-ng voices in noisy rooms, in LibriSpeech's layout.

On disk: `<root>/{train,dev,test}/<speaker>/<chapter>/<speaker>-<chapter>-<number>.flac` (16 kHz, 16
bit) with `.trans.txt` beside them; `<root>/words/<split>.ctm`, with the time of each word (from the
synthesiser's events, see `local/synthetic/espeak.py`); and `<root>/lm.txt`, text of the same
grammar for the language model. No sentence is in two splits, and none of dev or test is in
`lm.txt`.
"""

import dataclasses
import itertools
import json
import shutil
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from local.synthetic import espeak, sound
from local.synthetic.config import SyntheticConfig
from local.synthetic.espeak import Voice
from local.synthetic.sound import SAMPLING_RATE
from local.synthetic.text import sentences
from toolkit.align.ctm_textgrid import TimedToken, read_ctm, write_ctm
from toolkit.corpus.audio import encode_audio
from toolkit.corpus.config import CorpusConfig
from toolkit.errors import ToolkitError
from toolkit.processes.bars import Bar
from toolkit.processes.workers import map_in_processes
from toolkit.storage.files import write_atomically

UTTERANCES_PER_CHAPTER = 20
WORD_TIMES = "words.ctm"
"""File with the word times of a speaker's utterances, in the speaker's folder."""
NOISE = "snr.tsv"
"""File with the signal-to-noise ratio in dB of a speaker's utterances, in the speaker's folder."""


@dataclass(frozen=True)
class Speaker:
    """One voice of the corpus."""

    id: str
    """LibriSpeech speaker number."""
    voice: Voice
    """The synthesiser's settings."""
    tract: float
    """Vocal tract length relative to the synthesiser's."""


def _speakers(first: int, rows: list[tuple[str, int, int, int, float]]) -> list[Speaker]:
    """Make speakers with consecutive numbers from the parameters of their voices."""
    return [
        Speaker(str(first + number), Voice(f"en-us+{variant}", pitch, pitch_range, rate), tract)
        for number, (variant, pitch, pitch_range, rate, tract) in enumerate(rows)
    ]


# variant, pitch, pitch range, words per minute, vocal tract length
SPEAKERS: dict[str, list[Speaker]] = {
    "train": _speakers(
        101,
        [
            ("f1", 50, 50, 165, 1.00),
            ("m1", 48, 45, 160, 1.00),
            ("f2", 55, 60, 175, 1.04),
            ("m3", 42, 55, 170, 0.96),
            ("f4", 46, 40, 155, 0.98),
            ("m2", 55, 50, 180, 1.03),
            ("f5", 40, 55, 160, 1.02),
            ("m6", 50, 65, 150, 0.98),
            ("linda", 40, 50, 170, 1.03),
            ("paul", 52, 45, 165, 0.97),
            ("steph", 50, 50, 178, 0.99),
            ("robert", 45, 60, 158, 1.02),
            ("Annie", 45, 35, 168, 1.05),
            ("Michael", 55, 50, 172, 0.95),
            ("f1", 62, 70, 150, 1.06),
            ("m7", 38, 40, 182, 1.00),
            # The same variants with other pitch, rate and vocal tract.
            ("f1", 40, 60, 180, 0.95),
            ("m1", 58, 55, 170, 1.05),
            ("f2", 45, 45, 160, 0.98),
            ("m3", 52, 45, 155, 1.03),
            ("f4", 56, 55, 170, 1.05),
            ("m2", 45, 60, 165, 0.96),
            ("f5", 50, 45, 175, 0.96),
            ("m6", 42, 50, 165, 1.04),
            ("linda", 50, 60, 158, 0.97),
            ("paul", 42, 55, 178, 1.04),
            ("steph", 60, 60, 164, 1.05),
            ("robert", 55, 50, 172, 0.96),
            ("Annie", 55, 50, 156, 0.98),
            ("Michael", 45, 60, 160, 1.03),
            ("f2", 60, 50, 168, 0.93),
            ("m3", 48, 60, 176, 0.92),
        ],
    ),
    "dev": _speakers(
        201,
        [
            ("f3", 48, 55, 168, 1.02),
            ("m4", 52, 50, 162, 0.99),
            ("max", 47, 55, 174, 1.00),
            # The demo's networks find these as hard as two of the test voices.
            ("grandma", 50, 50, 166, 1.00),
            ("edward", 50, 50, 166, 1.00),
            ("Andy", 50, 50, 166, 1.00),
        ],
    ),
    "test": _speakers(
        301,
        [
            ("belinda", 44, 45, 164, 1.01),
            ("m8", 54, 55, 170, 0.98),
            ("f3", 58, 40, 156, 0.97),
            ("quincy", 50, 50, 176, 1.02),
        ],
    ),
}


def generate(
    settings: SyntheticConfig,
    out: Path,
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, float]:
    """Synthesise the corpus in `out`; speakers that are there already are kept.

    The bytes depend on the settings alone, not on `jobs` or interruptions.

    Args:
      jobs: processes, each of which synthesises one speaker at a time.
      progress: called with (speakers done, speakers).

    Returns:
      Hours by split.

    Raises:
      ToolkitError: `out` holds a corpus with other settings.
    """
    _check_settings(out, settings)
    lm_text = itertools.islice(sentences("train", f"{settings.seed}/lm"), settings.lm_sentences)
    write_atomically(out / "lm.txt", "".join(f"{text}\n" for text in lm_text))
    tasks = []
    for split, speakers in SPEAKERS.items():
        chosen = speakers[: settings.train_speakers] if split == "train" else speakers
        # Speakers share the hours of a split equally.
        seconds = 3600.0 * getattr(settings, f"{split}_hours") / len(chosen)
        tasks += [_Task(settings, out, split, speaker, seconds) for speaker in chosen]
    missing = [task for task in tasks if not (task.folder / WORD_TIMES).exists()]
    finished = map_in_processes(_make_speaker, missing, jobs)
    done = len(tasks) - len(missing)
    with Bar(total=len(tasks), initial=done, unit="voice", desc="speak") as bar:
        for count, _ in enumerate(finished, start=done + 1):
            bar.update()
            if progress is not None:
                progress(count, len(tasks))
    for split in SPEAKERS:
        folders = [task.folder for task in tasks if task.split == split]
        entries = (entry for folder in folders for entry in read_ctm(folder / WORD_TIMES))
        rows = ((e.utterance, e.channel, [TimedToken(e.token, e.start, e.end)]) for e in entries)
        write_ctm(rows, out / "words" / f"{split}.ctm")
    return {f"{split}_hours": _hours(out / split) for split in SPEAKERS}


def _check_settings(out: Path, settings: SyntheticConfig) -> None:
    """Write the settings to `out`, or check that the corpus there has the same settings."""
    path = out / "settings.json"
    inherited = {field.name for field in dataclasses.fields(CorpusConfig)}
    synthesis_settings = {
        k: v for k, v in dataclasses.asdict(settings).items() if k not in inherited
    }
    content = json.dumps(synthesis_settings, indent=1) + "\n"
    if path.exists() and path.read_text() != content:
        raise ToolkitError(
            f"{out} contains a demo corpus with other settings: delete this folder or choose "
            "another one"
        )
    write_atomically(path, content)


@dataclass(frozen=True)
class _Task:
    """The utterances of one speaker, to be made."""

    settings: SyntheticConfig
    out: Path
    split: str
    speaker: Speaker
    seconds: float

    @property
    def folder(self) -> Path:
        """Folder of the speaker's utterances."""
        return self.out / self.split / self.speaker.id


def _make_speaker(task: _Task) -> None:
    """Synthesise, mix and write a speaker's utterances until they last `task.seconds`."""
    settings, speaker = task.settings, task.speaker
    partial = task.folder.with_name(f".{speaker.id}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    texts = sentences(task.split, f"{settings.seed}/{task.split}/{speaker.id}")
    babble = _babble(settings, speaker)
    samples, number = 0, 0
    word_times: list[tuple[str, str, list[TimedToken]]] = []
    noise = ""
    while samples < task.seconds * SAMPLING_RATE:
        chapter = str(1001 + number // UTTERANCES_PER_CHAPTER)
        name = f"{speaker.id}-{chapter}-{number % UTTERANCES_PER_CHAPTER:04d}"
        folder = partial / chapter
        folder.mkdir(parents=True, exist_ok=True)
        text = next(texts)
        mixture, spoken, snr = _utterance(settings, speaker, name, text, babble)
        noise += f"{name}\t{snr:.2f}\n"
        (folder / f"{name}.flac").write_bytes(encode_audio(mixture, SAMPLING_RATE))
        with open(folder / f"{speaker.id}-{chapter}.trans.txt", "a", encoding="utf-8") as file:
            file.write(f"{name} {text}\n")
        words = [
            TimedToken(word, start, end)
            for word, (start, end) in zip(text.split(), spoken, strict=True)
        ]
        word_times.append((name, "1", words))
        samples += len(mixture)
        number += 1
    (partial / NOISE).write_text(noise, encoding="utf-8")
    write_ctm(word_times, partial / WORD_TIMES)
    # The folder appears complete or not at all.
    shutil.rmtree(task.folder, ignore_errors=True)
    partial.rename(task.folder)


def _utterance(
    settings: SyntheticConfig, speaker: Speaker, name: str, text: str, babble: np.ndarray
) -> tuple[np.ndarray, list[tuple[float, float]], float]:
    """Synthesise `text` in a room drawn with `name` as seed.

    Returns:
      The samples, int16[S]; (start, end) of each word in seconds; the signal-to-noise ratio in dB.
    """
    rng = np.random.default_rng([settings.seed, zlib.crc32(name.encode())])
    # Resampling by the tract length slows speech down; espeak-ng speaks faster by that factor.
    rate = round(speaker.voice.rate * speaker.tract * rng.uniform(0.93, 1.07))
    pitch = round(speaker.voice.pitch + rng.uniform(-4, 4))
    speech = espeak.speak(
        text.lower() + ".", dataclasses.replace(speaker.voice, rate=rate, pitch=pitch)
    )
    dry = sound.to_corpus_rate(speech.samples, speaker.tract)
    lead, trail = (int(SAMPLING_RATE * rng.uniform(0.15, 0.4)) for _ in range(2))
    length = lead + len(dry) + trail
    # White (exponent 0) to brown (2) noise, with a random share of babble.
    noise = sound.coloured_noise(rng, length, rng.uniform(0.0, 2.0))
    start = int(rng.integers(len(babble) - length))
    noise += rng.uniform(0.0, 1.0) * babble[start : start + length]
    response = sound.room_response(
        rng, rng.uniform(*settings.t60_seconds), rng.uniform(*settings.direct_to_reverberant_db)
    )
    snr = rng.uniform(*settings.snr_db)
    mixture = sound.mix(
        dry,
        response,
        noise,
        snr_db=snr,
        level_db=rng.uniform(-34.0, -20.0),
        lead=lead,
        trail=trail,
    )
    # Word times in espeak-ng's samples -> seconds of the corpus.
    up, down = sound.resampling(speaker.tract)
    times = [
        tuple((lead + sample * up / down) / SAMPLING_RATE for sample in (word.start, word.end))
        for word in speech.words
    ]
    return mixture, times, snr


def _babble(settings: SyntheticConfig, speaker: Speaker, seconds: float = 25.0) -> np.ndarray:
    """Make babble of three training voices: float64 of unit power, different per speaker."""
    length = int(seconds * SAMPLING_RATE)
    total = np.zeros(length)
    other_speakers = [candidate for candidate in SPEAKERS["train"] if candidate.id != speaker.id]
    rng = np.random.default_rng([settings.seed, zlib.crc32(speaker.id.encode())])
    for index in rng.choice(len(other_speakers), 3, replace=False):
        texts = sentences("train", f"{settings.seed}/babble/{speaker.id}/{index}")
        spoken, parts = 0, []
        while spoken < length:
            speech = espeak.speak(next(texts).lower(), other_speakers[index].voice)
            parts.append(sound.to_corpus_rate(speech.samples))
            spoken += len(parts[-1])
        track = np.concatenate(parts)[:length]
        total += track / np.sqrt(np.mean(track**2))
    return total / np.sqrt(np.mean(total**2))


def _hours(part: Path) -> float:
    """Return the hours of audio in a part."""
    frames = sum(soundfile.info(path).frames for path in part.glob("*/*/*.flac"))
    return frames / SAMPLING_RATE / 3600.0
