"""AN4's layout: `etc/*_{train,test}.{fileids,transcription}` and audio under the file ids."""

import re
from pathlib import Path

from lhotse import MonoCut

from toolkit.corpus.config import CorpusConfig
from toolkit.corpus.manifest import ManifestError
from toolkit.corpus.pairing import AudioSegment, pair
from toolkit.corpus.split import assemble
from toolkit.storage.reading import reading

AUDIO_SUFFIXES = (".sph", ".flac", ".wav")


def manifests(corpus: CorpusConfig, root: Path) -> dict[str, list[MonoCut]]:
    """Read AN4 in `root`.

    Parts are "train" and "test", after the endings of the file names in `etc`. "dev" is held out of
    train by speaker, and so is "test" if the official test part is missing. The speaker is the
    folder that holds the audio.
    """
    parts = {}
    for fileids in sorted((root / "etc").glob("*.fileids")):
        name = fileids.stem.rpartition("_")[2]
        parts.setdefault(name, []).extend(_read_part(root, fileids))
    if not parts:
        raise ManifestError(
            f"{root} contains no etc/*.fileids: set `corpus.root` to AN4's folder, which contains "
            "etc/an4_train.fileids and etc/an4_train.transcription"
        )
    return assemble(parts, corpus, hold_out_test=True)


def _read_part(root: Path, fileids: Path) -> list[MonoCut]:
    """Read the cuts of a part from its lists of file ids and transcripts."""
    transcription = fileids.with_suffix(".transcription")
    if not transcription.is_file():
        raise ManifestError(
            f"{transcription} does not exist: add this file, which contains the transcripts of the "
            f"utterances in {fileids.name}"
        )
    with reading(fileids, ManifestError, "fetch the corpus again"):
        lines = fileids.read_text(encoding="utf-8", errors="replace").split()
    audio = [
        (line.rpartition("/")[2], AudioSegment(str(_find_audio(root, line)))) for line in lines
    ]
    content = transcription.read_text(encoding="utf-8", errors="replace")
    texts = [parse_line(line, transcription) for line in content.split("\n") if line.strip()]
    return pair(texts, audio, _speaker, str(transcription))


def parse_line(line: str, path: Path) -> tuple[str, str]:
    """Split `<s> WORDS </s> (utterance)` into the utterance's id and its words."""
    match = re.fullmatch(r"(.*)\(([^()\s]+)\)\s*", line)
    if match is None:
        raise ManifestError(
            f"{path}: the line {line!r} does not end with an id in parentheses: correct this line"
        )
    words = [word for word in match[1].split() if word not in ("<s>", "</s>")]
    return match[2], " ".join(words)


def _find_audio(root: Path, fileid: str) -> Path:
    """Find a file id's audio in `root` or `root`/wav; if there is none, return a possible path."""
    candidates = [
        (root / folder / fileid).with_name(Path(fileid).name + suffix).absolute()
        for folder in ("", "wav")
        for suffix in AUDIO_SUFFIXES
    ]
    return next((path for path in candidates if path.is_file()), candidates[0])


def _speaker(id: str, path: Path | None) -> str:
    """Return the audio folder's name; without audio, the middle of an id such as an1-mblw-b."""
    if path is not None:
        return path.parent.name
    pieces = id.split("-")
    return pieces[1] if len(pieces) > 2 else id
