"""Finds audio files and their texts, in folders or a list."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from unicodedata import normalize

from toolkit.corpus.audio import AUDIO_SUFFIXES
from toolkit.corpus.media import MEDIA_SUFFIXES
from toolkit.errors import ToolkitError
from toolkit.lang.prepare import TextError
from toolkit.lang.text_policy import TextCounts, TextPolicy
from toolkit.storage.files import visible_files
from toolkit.storage.lines import LineCounts, TextLines, decoded_lines, is_faulty, key_and_rest
from toolkit.storage.paths import first_clash, printable, safe_name

logger = logging.getLogger(__name__)

MANY = 10
"""Smallest number of recordings for the warning that all of them count as one speaker."""
TEXT = frozenset({".txt", ".lab"})
"""Suffixes of transcripts in a folder."""


class InputError(ToolkitError):
    """Raised for texts, audio or speakers that cannot be found or read."""


@dataclass(frozen=True)
class Recording:
    """A recording to align, with its text, speaker and fault, if any."""

    utterance: str
    """Its name in the results, without white space."""
    audio: Path | None
    """The file; None when it is missing."""
    text: str
    """The transcript, as written."""
    speaker: str
    """The speaker's name."""
    fault: str = ""
    """Why it cannot be aligned; empty when it can."""

    def spoken(self, policy: TextPolicy, guess: bool = True) -> tuple[list[str], str]:
        """Normalise the text; return its words and the removed text.

        If the policy normalises text, numbers in digits are left out, as they may be read in
        several ways.

        Args:
          policy: how text becomes words.
          guess: keep tags, and words with digits such as MP3: the aligner guesses their
            pronunciation or aligns them as noise.
        """
        counts = TextCounts()
        read = policy.tokens_and_tags if guess else policy.tokens
        tokens = read(self.text, counts)
        # Numbers in digits may be read aloud in several ways; their words are not aligned.
        words = [
            word
            for word in tokens
            if word not in counts.unknown or (guess and any(map(str.isalpha, word)))
        ]
        removed = set(counts.removed).union(*(set(token) for token in {*tokens} - {*words}))
        left_out = [*sorted({*counts.tags, *counts.marks}), "".join(sorted(removed))]
        return words, " ".join(filter(None, left_out))


def audio_files(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return a folder's audio files, recognised by suffix at any depth, and other visible files.

    A video is among the other files if an audio file has the same name, since the audio was
    probably extracted from the video.
    """
    files = visible_files(folder)
    named = {path.with_suffix("") for path in files if path.suffix.lower() in AUDIO_SUFFIXES}
    audio: list[Path] = []
    other_files: list[Path] = []
    for path in files:
        suffix = path.suffix.lower()
        # A video is left out if its audio track lies beside it as a file.
        media = suffix in MEDIA_SUFFIXES and path.with_suffix("") not in named
        (audio if suffix in AUDIO_SUFFIXES or media else other_files).append(path)
    return audio, other_files


def read_inputs(
    audio: Path, text: Path, speakers: Path | None = None, by_speaker: bool = True
) -> list[Recording]:
    """Pair audio files with their texts; a file or text without a partner gets a fault.

    A text belongs to the audio file whose path below `audio`, without suffix, is the text's name.
    If there is none, the text belongs to the only audio file with this file name. File names are
    compared without suffix and with _ for white space, as `toolkit transcribe` writes names. Hidden
    files are left out. A recording gets a fault if its text is not UTF-8.

    Args:
      audio: a folder, searched at any depth.
      text: a Kaldi text file (`utterance word word ...`), or a folder of .txt and .lab files, whose
        names are their paths below the folder.
      speakers: a file of lines `utterance speaker`. The speaker of any other utterance is named
        after its folder, or after the utterance if its file lies in `audio` itself.
      by_speaker: whether a speaker's recordings are normalised together; if so, a warning is
        given when many recordings count as one speaker.

    Returns:
      Recordings, sorted by utterance.

    Raises:
      InputError: there is no folder of audio or no text, a line is malformed, or two texts have
        the same name.
    """
    if not audio.is_dir():
        raise InputError(f"{audio}: no such folder")
    texts, faults = _texts(text)
    speaker_of = read_speakers(speakers) if speakers else {}
    by_path: dict[str, list[Path]] = {}
    by_stem: dict[str, list[Path]] = {}
    for path in audio_files(audio)[0]:
        name = path.relative_to(audio).with_suffix("").as_posix()
        by_path.setdefault(_id(name), []).append(path)
        by_stem.setdefault(_id(path.stem), []).append(path)

    # A text belongs to the audio file with its path, or else to the only one with its file name.
    recordings = []
    name_of_letters = {_bare(name): name for name in by_path}
    used: set[Path] = set()
    for name, words in texts.items():
        candidates = by_path.get(_id(name)) or by_stem.get(_id(name), [])
        used.update(candidates)
        fault, path = faults.get(name, ""), candidates[0] if candidates else None
        if not candidates:
            fault = f"no audio file below {audio} has this name"
            if similar := name_of_letters.get(_bare(name)):
                fault += f"; did you mean {similar}?"
        elif len(candidates) > 1:
            fault = f"several audio files have this name: {', '.join(map(str, candidates))}"
        recordings.append(_recording(name, path, words, audio, speaker_of, fault))
    # Audio without a text.
    for name, paths in by_path.items():
        if used.isdisjoint(paths):
            fault = f"{paths[0]} has no text in {text}"
            recordings.append(_recording(name, paths[0], "", audio, speaker_of, fault))
    _mark_clashes(recordings)
    # Means over many speakers normalise each of them badly, so warn.
    one_speaker = speakers is None and len({r.speaker for r in recordings}) == 1
    if by_speaker and one_speaker and len(recordings) >= MANY:
        logger.warning(
            "all %d recordings are in one folder and are treated as one speaker. The models adapt "
            "to each speaker: if there are several, give a list of speakers with --speakers",
            len(recordings),
        )
    return sorted(recordings, key=lambda recording: recording.utterance)


def _mark_clashes(recordings: list[Recording]) -> None:
    """Set a fault in recordings whose results would have the same file name."""
    by_name: dict[str, list[int]] = {}
    for position, recording in enumerate(recordings):
        by_name.setdefault(recording.utterance, []).append(position)
    for name, positions in by_name.items():
        if len(positions) > 1:
            fault = f"the results of {len(positions)} recordings would be called {name}: rename one"
            for position in positions:
                recordings[position] = replace(recordings[position], fault=fault)
    # Names that differ in case or in replaced characters clash as files.
    clear = [position for position, recording in enumerate(recordings) if not recording.fault]
    while clash := first_clash(
        f"{safe_name(recordings[position].utterance)}.TextGrid" for position in clear
    ):
        pair = [clear[number] for number in clash]
        first, second = (recordings[position].utterance for position in pair)
        fault = f"the results of {first} and {second} would have the same path: rename one"
        for position in pair:
            recordings[position] = replace(recordings[position], fault=fault)
            clear.remove(position)


def _recording(
    name: str, path: Path | None, text: str, root: Path, speakers: Mapping[str, str], fault: str
) -> Recording:
    """Make a recording; its speaker comes from `speakers`, or else from its folder's name."""
    utterance = _id(name)
    folder = path.parent.relative_to(root).as_posix() if path else "."
    # Look the speaker up by utterance, then by file name; otherwise use the folder.
    speaker = speakers.get(utterance) or (speakers.get(_id(path.stem)) if path else None)
    speaker = speaker or (utterance if folder == "." else folder)
    return Recording(utterance, path, text, speaker, fault)


def _id(name: str) -> str:
    """Return a file's name as an utterance id: white space becomes `_`."""
    return "_".join(name.split())


def _bare(name: str) -> str:
    """Return a name's letters and digits in lower case, to compare names despite separators."""
    return "".join(filter(str.isalnum, normalize("NFC", name))).casefold()


def _texts(source: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return the usable texts by name, and the faults of the others by name."""
    faults: dict[str, str] = {}
    if source.is_dir():
        texts: dict[str, str] = {}
        for path in visible_files(source):
            if path.suffix.lower() in TEXT:
                name = path.relative_to(source).with_suffix("").as_posix()
                if name in texts:
                    raise InputError(
                        f"{source} contains two transcripts called {name}, with different "
                        "suffixes: delete one of them"
                    )
                texts[name], fault = _text_of_file(path)
                if fault:
                    faults[name] = fault
    elif source.suffix.lower() in (".csv", ".tsv", ".jsonl", ".json"):
        raise InputError(
            f"{source} is a table or a manifest: give a file with lines `name words ...`, such as "
            "Kaldi's text, or a folder of .txt files"
        )
    elif source.is_file():
        texts, faults = _pairs(source)
    else:
        raise InputError(f"{source}: no such file or folder")
    if not texts:
        raise InputError(
            f"{source} contains no transcripts. A folder must contain .txt or .lab files"
        )
    return texts, faults


def _text_of_file(path: Path) -> tuple[str, str]:
    """Return the text in a file, and its fault or ""."""
    lines = TextLines(TextError)
    try:
        text = " ".join(line for _, line in lines.read(path))
    except TextError as error:
        return "", str(error)
    return text, lines.message()


def read_speakers(path: Path) -> dict[str, str]:
    """Read a file with lines `utterance speaker`, such as Kaldi's utt2spk.

    Raises:
      InputError: the file cannot be read, has a line without a speaker, or names an utterance
        twice.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    speakers, faults = _pairs(path)
    for utterance, speaker in speakers.items():
        if fault := faults.get(utterance):
            raise InputError(fault)
        if not speaker:
            raise InputError(f"{path}: {utterance} has no speaker")
    return speakers


def _pairs(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Split each non-blank line at its first white space.

    Returns:
      The rest of each line by its first word, and the faults of lines that are not UTF-8.
    """
    pairs: dict[str, str] = {}
    faulty: dict[str, tuple[int, str]] = {}
    counts = LineCounts()
    for number, line in decoded_lines(path, InputError, counts):
        name, text = key_and_rest(line)
        if not name:
            continue
        name = printable(name)
        if name in pairs:
            raise InputError(f"{path}:{number} is a second line for {name}: delete one of them")
        pairs[name] = text
        if is_faulty(line):
            pairs[name] = ""
            faulty[name] = (number, line)
    return pairs, {
        name: f"{path}:{number} is not UTF-8: {counts.describe(line)}"
        for name, (number, line) in faulty.items()
    }
