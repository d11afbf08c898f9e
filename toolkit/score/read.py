"""Reading of transcripts: Kaldi's text, trn, plain lines, CTM, JSON, icefall's, and folders."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Literal

from toolkit.align.times import CtmError
from toolkit.score.alternatives import NO_WORD, GrammarError, parse
from toolkit.score.ctm import read_scored_ctm, timed_words
from toolkit.score.lines import (
    FaultyLineError,
    Side,
    TranscriptError,
    numbered_lines,
    undecoded_lines,
)
from toolkit.score.read_json import read_json_texts
from toolkit.score.read_recogs import is_recogs, recogs_texts
from toolkit.storage.lines import LineCounts, is_faulty, shown, too_many
from toolkit.storage.reading import quoted
from toolkit.storage.words import WHITE_SPACE, key_and_rest, single_spaced, split_words

Form = Literal["text", "trn", "plain", "json", "icefall", "ctm"]
FORMS: tuple[Form, ...] = ("text", "trn", "plain", "json", "icefall")
"""The formats that `--format` accepts; CTM and STM files are recognised by their names, also where
it is given."""

FOLDER = "folder of .txt"
JSON_FOLDER = "folder of .json"
OF_A_CHAPTER = ".trans.txt"
"""LibriSpeech's files, with a line of id and words for each utterance of a chapter."""

_WITH_TIMES = {
    ".textgrid": "a TextGrid",
    ".eaf": "ELAN's XML",
    ".rttm": "an RTTM file, which has no words,",
    ".srt": "a file of subtitles",
    ".vtt": "a file of subtitles",
}
# Each part of the pattern ends in one place only, so that matching takes linear time.
_TRN = re.compile(rf"^(.*)\(([^(){WHITE_SPACE}]+)\)[{WHITE_SPACE}]*$", re.DOTALL)
_LIKE_AN_ID = re.compile(r"[0-9_-]")
_BY_NAME: dict[str, Form | Literal["stm"]] = {
    "trn": "trn",
    "json": "json",
    "jsonl": "json",
    "ctm": "ctm",
    "stm": "stm",
}


@dataclass(frozen=True)
class Transcripts:
    """The transcripts of one file or folder."""

    form: str
    """The format in which it was read."""
    texts: dict[str, str]
    """Transcript by utterance id, in the file's order; words separated by single spaces."""
    speakers: dict[str, str] = field(default_factory=dict)
    """Speaker by utterance id, where the file or folder names them."""
    faulty: dict[str, str] = field(default_factory=dict)
    """By utterance id (or `line N`, where it has none), lines that are not UTF-8 and left out."""
    faulty_advice: str = ""
    """Advice that is right for all of these lines; empty where there is none."""

    @property
    def marked(self) -> bool:
        """Whether the format has alternatives and other marks; see `toolkit.score.alternatives`."""
        return self.form in ("trn", "ctm")

    def plain_texts(self) -> dict[str, str]:
        """Return the texts for uses that compare words alone: tags and asterisks are removed.

        Raises:
          TranscriptError: a text has alternatives.
          GrammarError: a text does not follow the grammar; the message names the utterance.
        """
        if not self.marked:
            return self.texts
        texts = {}
        for utterance, text in self.texts.items():
            try:
                words = parse(text)
            except GrammarError as error:
                raise GrammarError(f"{utterance}: {error}") from error
            plain = [word for word in words if isinstance(word, str) and word != NO_WORD]
            if len(plain) < len(words):
                raise TranscriptError(
                    f"{quoted(utterance)} has alternatives ({quoted(text)}), which `toolkit score` "
                    "alone can choose from: keep one of them"
                )
            texts[utterance] = " ".join(plain)
        return texts


def form_by_name(path: Path) -> Form | Literal["stm"] | None:
    """Return the format that a file's name implies, if any (`x.trn`, `x.jsonl.gz`, `ctm`)."""
    name = Path(path).name.removesuffix(".gz")
    return _BY_NAME.get(name.rpartition(".")[2].lower())


def read_transcripts(
    path: Path,
    form: Form | Literal["auto"] = "auto",
    named: bool = False,
    side: Side = "ref",
    leave_out_faulty: bool = False,
) -> Transcripts:
    """Read a file of transcripts in UTF-8 (gzipped: `.gz`), or a folder.

    - "text", Kaldi's: `utterance-id word word ...`; a line with only an id is an empty transcript.
    - "trn", sclite's: `word word ... (utterance-id)`; alternatives are kept as they are.
    - "plain": one transcript per line, whose id is the line number from 1; blank lines count.
    - "json": see `toolkit.score.read_json`.
    - "icefall": see `toolkit.score.read_recogs`.
    - "ctm": the words of each utterance (see `toolkit.score.segments` for those of recordings).
    - a folder: Kaldi's, with a file `text` and maybe utt2spk; otherwise one transcript per .txt or
      .lab file, whose id is the file's path without the suffix, and without white space; one per
      line, as in Kaldi's, of LibriSpeech's *.trans.txt. A folder without any has one per .json
      file.
    - "auto": by the suffix .trn, .json, .jsonl or .ctm; otherwise icefall's when every line is one
      of its, trn when every line ends in an id in parentheses, text when every line's first field
      has a digit, `-` or `_`, and plain when no line's has. With `named` never plain. (Two files
      that are plain by this may be text yet: see `toolkit.score.inputs`.)

    Blank lines are skipped in text, trn and icefall's files, comments (`;;`) in trn files.

    Args:
      path: file or folder.
      form: its format; a file named *.ctm is a CTM whatever it is.
      named: whether lines begin with an id.
      side: which text is read of files that have both, references and hypotheses.
      leave_out_faulty: leave out lines of text, trn and plain files that are not UTF-8, unless they
        are too many (see `toolkit.storage.lines.too_many`).

    Raises:
      TranscriptError: the file cannot be read or is not UTF-8, an id is missing or repeated, or the
        format cannot be detected; the message names file and line.
    """
    path = Path(path)
    if path.is_dir():
        return _read_folder(path, side, leave_out_faulty)
    named_form = form_by_name(path)
    if named_form == "stm":
        raise TranscriptError(
            f"{path}: an STM file is scored against a CTM file; name the hypothesis *.ctm"
        )
    if form == "auto":
        _refuse_others(path)
    if named_form == "ctm" or (form == "auto" and named_form is not None):
        form = named_form
    if form == "json":
        return Transcripts(form, *read_json_texts(path, side))
    if form == "ctm":
        return Transcripts(form, _ctm_texts(path))
    counts, faulty_lines = LineCounts(), []
    if leave_out_faulty:
        lines = undecoded_lines(path, counts)
        faulty_lines = [(number, line) for number, line in lines if is_faulty(line)]
        lines = [(number, line) for number, line in lines if not is_faulty(line)]
        _check_limit(path, faulty_lines, counts)
    else:
        lines = numbered_lines(path)
    if form == "auto":
        form = _detect(path, lines, named)
    faulty = {
        _faulty_id(form, *item): f"{path}:{item[0]}: {shown(item[1])}" for item in faulty_lines
    }
    if form == "icefall":  # its lines belong together in pairs: none can be left out
        lines = numbered_lines(path)
        filled = [(number, line) for number, line in lines if split_words(line)]
        return Transcripts(form, recogs_texts(path, filled, side))
    if form == "plain":
        texts = {str(number): single_spaced(line) for number, line in lines}
        return Transcripts("plain", texts, faulty=faulty, faulty_advice=counts.advice)
    texts, seen = {}, {}
    for number, line in lines:
        if not split_words(line) or (form == "trn" and line.startswith(";;")):
            continue
        utterance, words = (_text_line if form == "text" else _trn_line)(path, number, line)
        if utterance in seen:
            raise TranscriptError(
                f"{path}:{number}: utterance id {quoted(utterance)} occurred on line "
                f"{seen[utterance]} already: remove one of the two lines"
            )
        seen[utterance] = number
        texts[utterance] = single_spaced(words)
    return Transcripts(form, texts, faulty=faulty, faulty_advice=counts.advice)


def _check_limit(path: Path, faulty: Sequence[tuple[int, str]], counts: LineCounts) -> None:
    """Raise an error where too many lines are not UTF-8."""
    if too_many(counts.faulty, counts.lines):
        number, line = faulty[0]
        raise TranscriptError(
            f"{path}:{number}: {counts.faulty} of {counts.lines} lines are not UTF-8, first"
            f" {counts.describe(line)}"
        )


def _faulty_id(form: Form, number: int, line: str) -> str:
    """Return the id of a line that is not UTF-8, or `line N` where its id cannot be read."""
    if form == "plain":
        return str(number)
    match = _TRN.match(line)
    id = (match[2] if match else "") if form == "trn" else key_and_rest(line)[0]
    return id if id and not is_faulty(id) else f"line {number}"


def _refuse_others(path: Path) -> None:
    """Raise an error for files of other kinds, whose lines would be taken for words."""
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    if suffix == ".csv":
        raise TranscriptError(
            f"{path} is a table, whose columns are not read here: give the manifest of a split "
            "that a recipe has made of it, such as exp/base/data/test.jsonl, or --format"
        )
    if suffix in _WITH_TIMES:
        raise TranscriptError(
            f"{path}: {_WITH_TIMES[suffix]} is not read here: give its words as Kaldi text or trn, "
            "or with their times as STM or CTM (`toolkit align` writes CTM too), or --format"
        )


def read_speakers(path: Path) -> dict[str, str]:
    """Read Kaldi's `utt2spk`: lines of `utterance-id speaker`.

    Raises:
      TranscriptError: the file cannot be read, a line has no speaker, or an id is repeated.
    """
    speakers = read_transcripts(path, "text").texts
    for utterance, speaker in speakers.items():
        if not speaker or " " in speaker:
            raise TranscriptError(
                f"{path}: {quoted(utterance)} must be followed by one speaker, not by "
                f"{quoted(speaker)}"
            )
    return speakers


def _read_folder(folder: Path, side: Side, leave_out_faulty: bool) -> Transcripts:
    if (folder / "text").is_file():
        utt2spk = folder / "utt2spk"
        speakers = read_speakers(utt2spk) if utt2spk.is_file() else {}
        found = read_transcripts(folder / "text", "text", leave_out_faulty=leave_out_faulty)
        return replace(found, speakers=speakers)
    files = sorted(path for path in folder.rglob("*") if path.suffix in (".txt", ".lab"))
    texts: dict[str, str] = {}
    faulty: dict[str, str] = {}
    for path in files:
        if path.name.endswith(OF_A_CHAPTER):
            own = read_transcripts(path, "text").texts
            if repeated := sorted(own.keys() & texts.keys()):
                raise TranscriptError(f"{path}: {quoted(repeated[0])} has another text already")
            texts |= own
            continue
        id = _new_id(folder, path, texts)
        try:
            lines = [line for _, line in numbered_lines(path)]
        except FaultyLineError as error:
            if not leave_out_faulty:
                raise
            faulty[id] = str(error)
            continue
        texts[id] = " ".join(word for line in lines for word in split_words(line))
    if too_many(len(faulty), len(faulty) + len(texts)):
        raise TranscriptError(
            f"{folder}: {len(faulty)} of {len(faulty) + len(texts)} texts are not UTF-8, first "
            f"{next(iter(faulty.values()))}"
        )
    if texts:
        return Transcripts(FOLDER, texts, faulty=faulty)
    for path in sorted(folder.rglob("*.json")):
        own, _ = read_json_texts(path, side)
        if len(own) != 1:
            raise TranscriptError(f"{path} has {len(own)} transcripts: a folder has one per file")
        texts[_new_id(folder, path, texts)] = next(iter(own.values()))
    if not texts:
        raise TranscriptError(
            f"{folder} has neither a file `text` nor any .txt, .lab or .json file"
        )
    return Transcripts(JSON_FOLDER, texts)


def _new_id(folder: Path, path: Path, texts: Mapping[str, str]) -> str:
    """Name the recording of a file as `toolkit transcribe` does."""
    id = "_".join(path.relative_to(folder).with_suffix("").as_posix().split())
    if id in texts:
        raise TranscriptError(f"{path}: another text has the id {quoted(id)}: rename one")
    return id


def _ctm_texts(path: Path) -> dict[str, str]:
    """Return the words of each utterance of a CTM in order of time."""
    try:
        entries = timed_words(read_scored_ctm(path))
    except CtmError as error:
        named = str(error).startswith(str(path))
        raise TranscriptError(str(error) if named else f"{path}: {error}") from error
    channels: dict[str, str] = {}
    for entry in entries:
        if channels.setdefault(entry.recording, entry.channel) != entry.channel:
            raise TranscriptError(
                f"{path}: {entry.recording!r} has the channels {channels[entry.recording]} and "
                f"{entry.channel}: score recordings of several channels against an STM file"
            )
    entries.sort(key=lambda entry: (entry.recording, entry.start))
    return {
        utterance: " ".join(entry.text for entry in group)
        for utterance, group in groupby(entries, key=lambda entry: entry.recording)
    }


def _detect(path: Path, lines: list[tuple[int, str]], named: bool) -> Form:
    filled = [(number, line) for number, line in lines if split_words(line)]
    if is_recogs([line for _, line in filled]):
        return "icefall"
    spoken = [line for _, line in filled if not line.startswith(";;")]
    if spoken and all(_TRN.match(line) for line in spoken):
        return "trn"
    if named:
        return "text"
    ids = [(number, bool(_LIKE_AN_ID.search(split_words(line)[0]))) for number, line in filled]
    if all(like for _, like in ids) and ids:
        return "text"
    if not any(like for _, like in ids):
        return "plain"
    with_id = next(number for number, like in ids if like)
    without = next(number for number, like in ids if not like)
    raise TranscriptError(
        f"{path}: cannot detect its format: line {with_id} begins with what looks like an "
        f"utterance id and line {without} does not: give --format text, trn or plain"
    )


def _text_line(path: Path, number: int, line: str) -> tuple[str, str]:
    if line[0] in WHITE_SPACE:
        raise TranscriptError(
            f"{path}:{number}: the line begins with white space instead of an utterance id"
        )
    return key_and_rest(line)


def _trn_line(path: Path, number: int, line: str) -> tuple[str, str]:
    match = _TRN.match(line)
    if match is None:
        raise TranscriptError(
            f"{path}:{number}: a trn line must end in an utterance id in parentheses, but this one "
            f"ends in {line[-30:]!r}"
        )
    return match[2], match[1]
