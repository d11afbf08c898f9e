"""LibriSpeech's layout: `<part>/<speaker>/<chapter>/` with audio and a `.trans.txt`."""

from collections.abc import Callable
from pathlib import Path

from lhotse import MonoCut

from toolkit.corpus.config import CorpusConfig
from toolkit.corpus.manifest import ManifestError
from toolkit.corpus.pairing import AudioSegment, pair
from toolkit.corpus.split import assemble, matches
from toolkit.storage.reading import reading

AUDIO_SUFFIXES = (".flac", ".wav")


def fetch(
    corpus: CorpusConfig,
    out: Path,
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, float]:
    """Download the parts that match the patterns into `out`, with lhotse.

    With the default patterns these are mini LibriSpeech's train-clean-5 and dev-clean-2. lhotse
    downloads one part after the other and shows its own progress.
    """
    from lhotse.recipes import download_librispeech
    from lhotse.recipes.librispeech import LIBRISPEECH, MINI_LIBRISPEECH

    patterns = (corpus.train, corpus.dev, corpus.test)
    if patterns == ("train*", "dev*", "test*"):
        parts = list(MINI_LIBRISPEECH)
    else:
        # mini LibriSpeech's parts repeat utterances of LibriSpeech's: take them only for patterns
        # that match no part of LibriSpeech.
        part_names: dict[str, None] = {}
        for pattern in ",".join(patterns).split(","):
            matching = [part for part in LIBRISPEECH if matches(part, pattern)]
            matching = matching or [part for part in MINI_LIBRISPEECH if matches(part, pattern)]
            part_names |= dict.fromkeys(matching)
        parts = list(part_names)
    try:
        download_librispeech(out, dataset_parts=parts)
    except OSError as error:
        raise ManifestError(
            f"cannot download LibriSpeech ({', '.join(parts)}): {error}. "
            "If you have a copy, give its folder with --set corpus.root=FOLDER"
        ) from error
    return {"parts": len(parts)}


def manifests(corpus: CorpusConfig, audio: Path) -> dict[str, list[MonoCut]]:
    """Read the parts in `audio` (LibriSpeech itself or its parent) that match the patterns.

    Training parts are merged into "train"; the other parts keep their names.

    Utterances without audio, audio without a transcript and repeated lines are kept as faulty cuts
    or as copies, which the data check reports.
    """
    parts = {part.name: _read_part(part) for part in _find_parts(audio, corpus)}
    return assemble(parts, corpus)


def _find_parts(root: Path, corpus: CorpusConfig) -> list[Path]:
    """List the folders that match a pattern, in `root` or `root`/LibriSpeech."""
    patterns = ",".join((corpus.train, corpus.dev, corpus.test))
    for folder in (root, root / "LibriSpeech"):
        if folder.is_dir():
            folders = sorted(path for path in folder.iterdir() if path.is_dir())
            part_folders = [path for path in folders if matches(path.name, patterns)]
            if part_folders:
                return part_folders
    raise ManifestError(
        f"{root} contains no folder of LibriSpeech that matches {patterns}. Set `corpus.root` to a "
        "folder that contains folders such as train-clean-100"
    )


def _read_part(part: Path) -> list[MonoCut]:
    """Read the cuts of all chapters of a part."""
    cuts = []
    for chapter in sorted(path for path in part.glob("*/*") if path.is_dir()):
        if not any(name.startswith(".") for name in chapter.relative_to(part).parts):
            cuts += _read_chapter(chapter)
    return cuts


def _read_chapter(chapter: Path) -> list[MonoCut]:
    """Read the cuts of a chapter from its audio files and transcripts."""
    audio, texts = [], []
    for path in sorted(chapter.iterdir()):
        if path.suffix in AUDIO_SUFFIXES:
            audio.append((path.stem, AudioSegment(str(path.absolute()))))
        elif path.name.endswith(".trans.txt"):
            with reading(path, ManifestError, "fetch the corpus again"):
                content = path.read_text(encoding="utf-8", errors="replace")
            for line in content.split("\n"):
                if line.strip():
                    id, _, text = line.strip().partition(" ")
                    texts.append((id, text))
    return pair(texts, audio, lambda id, path: chapter.parent.name, f"{chapter}/*.trans.txt")
