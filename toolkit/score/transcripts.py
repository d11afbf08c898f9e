"""Reading of transcripts: Kaldi's text, trn, plain lines, CTM, JSON, icefall's, and folders.

icefall's files of results, `recogs-*.txt`, have two lines of each cut:

    1089-134686-0000-0:	ref=['HE', 'HOPED']
    1089-134686-0000-0:	hyp=['HE', 'HOPES']
"""

import ast
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple

from toolkit.align.ctm_textgrid import CtmError
from toolkit.errors import ToolkitError
from toolkit.score.alignment import Side
from toolkit.storage.lines import (
    WHITE_SPACE,
    LineCounts,
    decoded_lines,
    is_faulty,
    key_and_rest,
    read_content,
    read_lines,
    shown,
    single_spaced,
    split_words,
    too_many,
)
from toolkit.storage.reading import quoted


class TranscriptError(ToolkitError):
    """A transcript file that cannot be read."""


_FILES = ("audio", "audio_filepath", "path", "file")
_IDS = ("id", "utterance", *_FILES, "name")
"""Keys of a record's id. The first key that a record has counts, as `name` may be that of a
speaker. If the value is the path of a file, the id is the file's name without folder, suffix and
white space."""
_OF_A_HYPOTHESIS = "pred_text"
"""Key of the hypothesis in NeMo's manifests, where `text` is the reference."""


# Surrogates, which JSON can write unpaired and UTF-8 cannot.
_HALF = re.compile(r"[\ud800-\udfff]")
_PARTS = ("segments", "transcription")
"""Keys of the list of segments in the output of Whisper, WhisperX and whisper.cpp."""


class _Record(NamedTuple):
    """A transcript in a JSON file."""

    id: str
    text: str | None
    """None if the recording could not be read, or if the words of a stream may still change."""
    speaker: str | None = None
    part: bool = False
    """Whether it is one of the several utterances of a stream."""
    place: str | None = None
    """The file's path, and the start time of a part, for an id that comes from a file name."""
    key: str = "text"
    """Key of the text in the record."""


def read_json_texts(path: Path, side: Side = "ref") -> tuple[dict[str, str], dict[str, str]]:
    """Read transcripts, and speakers where there are any.

    - `.jsonl`: a record per line: a lhotse cut (the texts of its supervisions are concatenated), or
      a mapping with `id` (or `utterance`, the path of a file under `audio`, `audio_filepath`,
      `path` or `file`, or `name`), `text`, and optionally `speaker`. A record with an `error` and
      no text (or null), which `toolkit transcribe` writes for an unreadable recording, is left out.
      The final utterances (`final`) of the streams that it writes are concatenated. A record with
      an `offset`, or whose file has the name of another file, is named by the path of its file and
      the offset.
    - any other file: a list of such records; a mapping from ids to texts or records; a record per
      line; or Whisper's `text`, `segments` or `transcription` of a recording, which is named like
      the file unless it has an id.

    Args:
      path: the file, gzipped if its name ends in .gz.
      side: "hyp" takes the `pred_text` of NeMo's records; if some records have one, the others have
        no hypothesis.

    Returns:
      Text by id, and speaker by id.

    Raises:
      TranscriptError: a record is malformed; the message names the file and the line or record.
    """
    texts: dict[str, str] = {}
    speakers: dict[str, str] = {}
    parts: set[str] = set()
    records = list(_records(path, side))
    # NeMo writes `pred_text` beside the reference's `text`, but not for recordings that failed.
    recognised = any(record.key == _OF_A_HYPOTHESIS for _, record in records)
    for place, record in _named_apart(records):
        id, text, speaker, part, *_ = record
        if text is None or (recognised and record.key != _OF_A_HYPOTHESIS):
            continue
        for value in (id, text, speaker or ""):
            if _HALF.search(value):
                raise TranscriptError(
                    f"{place}: {quoted(value)} has an unpaired surrogate, which is not a "
                    "character and cannot be written: correct the text"
                )
        for value in (id, speaker or ""):
            if set(value) & set(WHITE_SPACE[1:]):
                raise TranscriptError(
                    f"{place}: {quoted(value)} has a tab or line break, but ids and speakers in "
                    "tables of scores must not contain them: rename it"
                )
        if id in texts and not (part and id in parts):
            raise TranscriptError(
                f"{place}: the id {quoted(id)} occurs a second time: give each record its own `id`"
            )
        texts[id] = single_spaced(f"{texts.get(id, '')} {text}")
        parts |= {id} if part else set()
        if speaker is not None:
            speakers[id] = speaker
    return texts, speakers


def _records(path: Path, side: Side) -> Iterator[tuple[str, _Record]]:
    """Yield each record of a JSON file after its place, for messages."""
    # Other JSON files may have a record per line as well: then parsing the whole fails.
    by_line = Path(path).name.removesuffix(".gz").endswith(".jsonl")
    parsed = None
    if not by_line:
        try:
            parsed = _parsed(str(path), read_content(path, TranscriptError))
        except TranscriptError:
            by_line = _has_records_in_lines(path)
            if not by_line:
                raise
    if by_line:
        for number, line in read_lines(path, TranscriptError):
            if line.strip():
                place = f"{path}:{number}"
                yield place, _record(place, _parsed(place, line), side)
        return
    # Whisper's file of one recording, which it names only by the file's name.
    if isinstance(parsed, dict) and any(isinstance(parsed.get(key), list) for key in _PARTS):
        if _id_key(parsed) is None:
            parsed = {"file": Path(path).name.removesuffix(".gz"), **parsed}
        yield str(path), _record(str(path), parsed, side)
    elif isinstance(parsed, dict) and _is_record(parsed):
        yield str(path), _record(str(path), parsed, side)
    elif isinstance(parsed, dict):
        for id, value in parsed.items():
            place = f"{path}: {quoted(id)}"
            record = {"id": id, "text": value} if isinstance(value, str) else value
            record = {"id": id, **record} if isinstance(record, dict) else record
            yield place, _record(place, record, side)
    elif isinstance(parsed, list):
        for number, value in enumerate(parsed, 1):
            place = f"{path}: record {number}"
            yield place, _record(place, value, side)
    else:
        raise TranscriptError(
            f"{path}: the file contains neither a list of records nor a mapping of ids to texts"
        )


def _has_records_in_lines(path: Path) -> bool:
    """Return whether the first line of a file is a record by itself and other lines follow."""
    filled = [line for _, line in read_lines(path, TranscriptError) if line.strip()]
    try:
        return len(filled) > 1 and isinstance(json.loads(filled[0]), dict)
    except (ValueError, RecursionError):
        return False


def _named_apart(records: Sequence[tuple[str, _Record]]) -> Iterator[tuple[str, _Record]]:
    """Replace the ids of records by their paths if their files have the same name."""
    # `a/x.wav` and `b/x.wav` have the same name: their ids become paths.
    id_counts = Counter(record.id for _, record in records if record.place is not None)
    for place, record in records:
        if record.place is not None and id_counts[record.id] > 1 and not record.part:
            record = record._replace(id=record.place)
        yield place, record


def _is_record(mapping: dict) -> bool:
    """Return whether a mapping is one record, not one from ids to texts."""
    texts = ("text", _OF_A_HYPOTHESIS, "supervisions")
    return any(key in mapping for key in _IDS) and any(key in mapping for key in texts)


def _id_key(record: dict) -> str | None:
    """Return the key of a record's id, the first of `_IDS` with a text or a number."""
    return next((key for key in _IDS if type(record.get(key)) in (str, int)), None)


def _parsed(place: str, text: str | bytes) -> Any:
    """Parse JSON; a key that occurs twice is an error."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        record = dict(pairs)
        if len(record) < len(pairs):
            [(key, _), *_] = Counter(key for key, _ in pairs).most_common(1)
            raise TranscriptError(f"{place}: the key {quoted(key)} occurs twice in one mapping")
        return record

    try:
        return json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise TranscriptError(f"{place}: not JSON: {error}") from error


def _record(place: str, record: Any, side: Side) -> _Record:
    """Read one transcript from a JSON mapping."""
    if not isinstance(record, dict):
        raise TranscriptError(f"{place}: a record must be a mapping with `id` and `text`")
    key = _id_key(record)
    if key is None:
        raise TranscriptError(f"{place}: the record has no `id`")
    id, longer = str(record[key]), None
    if key in _FILES:
        # White space is replaced as in the ids of a folder of texts.
        longer = "_".join(Path(id).with_suffix("").as_posix().split()) if Path(id).name else id
        offset = record.get("offset")
        if isinstance(offset, int | float):
            id = longer = f"{longer}@{offset:.12g}"
        else:
            id = "_".join(Path(id).stem.split())
    if record.get("text") is None and isinstance(record.get("error"), str):
        return _Record(id, None, place=longer)
    if record.get("final") is False:
        return _Record(id, None)
    parts = record.get("supervisions", [record])
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise TranscriptError(
            f"{place}: the supervisions of {quoted(id)} are not a list of records"
        )
    texts = [_text(part, side) for part in parts]
    for part, text in zip(parts, texts, strict=True):
        if not isinstance(text, str):
            name = _key(part, side)
            lacks = f"has no `{name}`" if text is None else f"has a `{name}` that is not a string"
            raise TranscriptError(f"{place}: {quoted(id)} {lacks}")
    speakers = [part.get("speaker") for part in parts]
    names = {speaker for speaker in speakers if isinstance(speaker, str)}
    speaker = names.pop() if len(names) == 1 else None
    part, key = record.get("final") is True, _key(parts[0], side) if parts else ""
    return _Record(id, " ".join(texts), speaker, part, longer, key)


def _text(part: dict, side: Side) -> Any:
    """Return the text of a record, or the texts of its parts if it has none of its own."""
    key = _key(part, side)
    parts = next((part[name] for name in _PARTS if isinstance(part.get(name), list)), None)
    if key in part or parts is None:
        return part.get(key)
    part_texts = [each.get("text") for each in parts if isinstance(each, dict)]
    texts = [text for text in part_texts if isinstance(text, str)]
    return " ".join(texts) if len(texts) == len(parts) else None


def _key(part: dict, side: Side) -> str:
    """Return the key under which a record has the text of a side."""
    return _OF_A_HYPOTHESIS if side == "hyp" and _OF_A_HYPOTHESIS in part else "text"


_LINE = re.compile(r"(\S[^\t]*):\t(\w+)=(.*)")
"""A line of icefall's files: cut id, kind (`ref`, `hyp` or `timestamp_hyp`), and a list in Python's
notation."""


def is_recogs(lines: Sequence[str]) -> bool:
    """Return whether all non-blank lines have the format of icefall's recogs files."""
    matches = (_LINE.fullmatch(line) for line in lines)  # usually the first line decides
    return bool(lines) and all(match and match[3][:1] in "[(" for match in matches)


def recogs_texts(path: Path, lines: Sequence[tuple[int, str]], side: Side) -> dict[str, str]:
    """Return the references or hypotheses of icefall's recogs file by cut id.

    Args:
      path: for messages.
      lines: (number, line), without blank ones.
      side: the side to return.

    Raises:
      TranscriptError: a line is malformed, or names a cut a second time; the message names it.
    """
    texts: dict[str, str] = {}
    for number, line in lines:
        match = _LINE.fullmatch(line)
        if match is None:
            raise TranscriptError(f"{path}:{number}: neither `name:<tab>ref=[...]` nor `hyp=[...]`")
        name, key, value = match.groups()
        if key != side:
            continue
        if name in texts:
            raise TranscriptError(f"{path}:{number}: {quoted(name)} has a second line `{side}=`")
        texts[name] = " ".join(_words(f"{path}:{number}", value))
    return texts


def _words(place: str, value: str) -> list[str]:
    """Return the words in a list in Python's notation."""
    try:
        words = ast.literal_eval(value)  # literals alone: nothing is executed
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise TranscriptError(f"{place}: {value[:40]!r} is not a list of words") from error
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise TranscriptError(f"{place}: {value[:40]!r} is not a list of words")
    return [part for word in words for part in split_words(word)]


Form = Literal["text", "trn", "plain", "json", "icefall", "ctm"]
FORMS: tuple[Form, ...] = ("text", "trn", "plain", "json", "icefall")
"""The formats that `--format` accepts; CTM and STM files are recognised by their names, even if it
is given."""

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
    """Lines that are not UTF-8 and are left out, by utterance id or `line N`."""
    faulty_advice: str = ""
    """Advice that holds for all of these lines; empty if there is none."""

    @property
    def marked(self) -> bool:
        """Whether the format has alternatives and other marks; see `toolkit.score.nist.grammar`."""
        return self.form in ("trn", "ctm")

    def plain_texts(self) -> dict[str, str]:
        """Return the texts for uses that compare words alone: tags and asterisks are removed.

        Raises:
          TranscriptError: a text has alternatives.
          GrammarError: a text does not follow the grammar; the message names the utterance.
        """
        if not self.marked:
            return self.texts
        # Only trn and CTM files need NIST's formats: recipes read Kaldi's text without them.
        from toolkit.score.nist.grammar import NO_WORD, GrammarError, parse

        texts = {}
        for utterance, text in self.texts.items():
            try:
                words = parse(text)
            except GrammarError as error:
                raise GrammarError(f"{utterance}: {error}") from error
            single_words = [word for word in words if isinstance(word, str) and word != NO_WORD]
            if len(single_words) < len(words):
                raise TranscriptError(
                    f"{quoted(utterance)} has alternatives ({quoted(text)}). Only `toolkit score` "
                    "supports alternatives: keep one of them"
                )
            texts[utterance] = " ".join(single_words)
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
    - "json": see `toolkit.score.transcripts`.
    - "icefall": see `toolkit.score.transcripts`.
    - "ctm": the words of each utterance (see `toolkit.score.nist.formats` for those of recordings).
    - a folder: Kaldi's, with a file `text` and perhaps utt2spk; otherwise one transcript per .txt
      or .lab file, whose id is the file's path without the suffix and with `_` for white space, or
      one per line of LibriSpeech's *.trans.txt, as in Kaldi's text. A folder without any of these
      has one per .json file.
    - "auto": by the suffix .trn, .json, .jsonl or .ctm; otherwise icefall's if every line has its
      format, trn if every line ends in an id in parentheses, text if every line's first field has a
      digit, `-` or `_`, and plain if no line's first field has one of these. With `named`, never
      plain. (Two files that are plain by this rule may still be text: see `toolkit.score.inputs`.)

    Blank lines are skipped in text, trn and icefall's files, comments (`;;`) in trn files.

    Args:
      path: file or folder.
      form: its format; a file named *.ctm is read as a CTM in any case.
      named: whether lines begin with an id.
      side: the text that is read from files with references and hypotheses.
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
            f"{path}: an STM file is scored against a CTM file: give a hypothesis file whose name "
            "ends in .ctm"
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
        lines = list(decoded_lines(path, TranscriptError, counts))
        faulty_lines = [(number, line) for number, line in lines if is_faulty(line)]
        lines = [(number, line) for number, line in lines if not is_faulty(line)]
        _check_limit(path, faulty_lines, counts)
    else:
        lines = list(read_lines(path, TranscriptError))
    if form == "auto":
        form = _detect(path, lines, named)
    faulty = {
        _faulty_id(form, *item): f"{path}:{item[0]}: {shown(item[1])}" for item in faulty_lines
    }
    if form == "icefall":  # lines belong together in pairs, so that none can be left out
        filled = [
            (number, line)
            for number, line in read_lines(path, TranscriptError)
            if split_words(line)
        ]
        return Transcripts(form, recogs_texts(path, filled, side))
    if form == "plain":
        texts = {str(number): single_spaced(line) for number, line in lines}
        return Transcripts("plain", texts, faulty=faulty, faulty_advice=counts.advice)
    texts, line_of = {}, {}
    for number, line in lines:
        if not split_words(line) or (form == "trn" and line.startswith(";;")):
            continue
        utterance, words = (_text_line if form == "text" else _trn_line)(path, number, line)
        if utterance in line_of:
            raise TranscriptError(
                f"{path}:{number}: the utterance id {quoted(utterance)} already occurred on line "
                f"{line_of[utterance]}: remove one of the two lines"
            )
        line_of[utterance] = number
        texts[utterance] = single_spaced(words)
    return Transcripts(form, texts, faulty=faulty, faulty_advice=counts.advice)


def _check_limit(path: Path, faulty: Sequence[tuple[int, str]], counts: LineCounts) -> None:
    """Raise an error if too many lines are not UTF-8."""
    if too_many(counts.faulty, counts.lines):
        number, line = faulty[0]
        raise TranscriptError(
            f"{path}:{number}: {counts.faulty} of {counts.lines} lines are not UTF-8. The first is "
            f"{counts.describe(line)}"
        )


def _faulty_id(form: Form, number: int, line: str) -> str:
    """Return the id of a line that is not UTF-8, or `line N` if its id cannot be read."""
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
            f"{path} is a table, which this command does not read: give the manifest that a recipe "
            "made from the table, such as exp/base/data/test.jsonl, or set the format with --format"
        )
    if suffix in _WITH_TIMES:
        raise TranscriptError(
            f"{path}: {_WITH_TIMES[suffix]} is not read by this command: give the words as Kaldi "
            "text or trn, or the words with their times as STM or CTM (`toolkit align` also writes "
            "CTM), or set the format with --format"
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
    """Read a Kaldi data directory, or a folder with a file for each utterance or chapter."""
    if (folder / "text").is_file():
        utt2spk = folder / "utt2spk"
        speakers = read_speakers(utt2spk) if utt2spk.is_file() else {}
        transcripts = read_transcripts(folder / "text", "text", leave_out_faulty=leave_out_faulty)
        return replace(transcripts, speakers=speakers)
    # A file per utterance, or LibriSpeech's files of a chapter, `<id> <words>` on each line.
    files = sorted(path for path in folder.rglob("*") if path.suffix in (".txt", ".lab"))
    texts: dict[str, str] = {}
    faulty: dict[str, str] = {}
    for path in files:
        if path.name.endswith(OF_A_CHAPTER):
            file_texts = read_transcripts(path, "text").texts
            if repeated := sorted(file_texts.keys() & texts.keys()):
                raise TranscriptError(
                    f"{path}: {quoted(repeated[0])} already has a text in another file"
                )
            texts |= file_texts
            continue
        id = _new_id(folder, path, texts)
        counts = LineCounts()
        words: list[str] = []
        for number, line in decoded_lines(path, TranscriptError, counts):
            words += split_words(line)
            if is_faulty(line) and id not in faulty:
                faulty[id] = f"{path}:{number}: not UTF-8: {shown(line)}"
        if id not in faulty:
            texts[id] = " ".join(words)
        elif not leave_out_faulty:
            advice = f"; {counts.advice}" if counts.advice else ""
            raise TranscriptError(f"{faulty[id]}{advice}")
    if too_many(len(faulty), len(faulty) + len(texts)):
        raise TranscriptError(
            f"{folder}: {len(faulty)} of {len(faulty) + len(texts)} texts are not UTF-8. The first "
            f"is {next(iter(faulty.values()))}"
        )
    if texts:
        return Transcripts(FOLDER, texts, faulty=faulty)
    # Without texts: a recogniser's JSON output, one file per recording.
    for path in sorted(folder.rglob("*.json")):
        file_texts, _ = read_json_texts(path, side)
        if len(file_texts) != 1:
            raise TranscriptError(
                f"{path} has {len(file_texts)} transcripts, but each JSON file in a folder must "
                "have exactly one"
            )
        texts[_new_id(folder, path, texts)] = next(iter(file_texts.values()))
    if not texts:
        raise TranscriptError(
            f"{folder} contains neither a file `text` nor any .txt, .lab or .json file"
        )
    return Transcripts(JSON_FOLDER, texts)


def _new_id(folder: Path, path: Path, texts: Mapping[str, str]) -> str:
    """Return the id that `toolkit transcribe` gives a file's recording; it must be new."""
    id = "_".join(path.relative_to(folder).with_suffix("").as_posix().split())
    if id in texts:
        raise TranscriptError(
            f"{path}: another text has the same id {quoted(id)}: rename one of the two files"
        )
    return id


def _ctm_texts(path: Path) -> dict[str, str]:
    """Return the words of each utterance of a CTM in order of time."""
    from toolkit.score.nist.formats import read_scored_ctm, timed_words  # see `plain_texts`

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
                f"{entry.channel}: give an STM file as reference for recordings of several channels"
            )
    # A stable sort: words that begin together stay in the file's order.
    entries.sort(key=lambda entry: (entry.recording, entry.start))
    return {
        utterance: " ".join(entry.text for entry in group)
        for utterance, group in groupby(entries, key=lambda entry: entry.recording)
    }


def _detect(path: Path, lines: list[tuple[int, str]], named: bool) -> Form:
    """Return the format that the lines of a file have."""
    filled = [(number, line) for number, line in lines if split_words(line)]
    if is_recogs([line for _, line in filled]):
        return "icefall"
    # Comments of trn files.
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
        f"{path}: cannot detect the format: line {with_id} begins with a word that looks like an "
        f"utterance id, but line {without} does not. Give --format text, trn or plain"
    )


def _text_line(path: Path, number: int, line: str) -> tuple[str, str]:
    """Split a line of Kaldi's `text` into utterance id and words."""
    if line[0] in WHITE_SPACE:
        raise TranscriptError(
            f"{path}:{number}: the line begins with white space instead of an utterance id"
        )
    return key_and_rest(line)


def _trn_line(path: Path, number: int, line: str) -> tuple[str, str]:
    """Split a line of a trn file into utterance id and words."""
    match = _TRN.match(line)
    if match is None:
        raise TranscriptError(
            f"{path}:{number}: a trn line must end in an utterance id in parentheses, but this one "
            f"ends in {line[-30:]!r}"
        )
    return match[2], match[1]
