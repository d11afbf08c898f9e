"""Transcripts in JSON: lhotse's cuts, Whisper's results, and records with an id and a text."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from toolkit.score.lines import Side, TranscriptError, content, numbered_lines
from toolkit.storage.reading import quoted
from toolkit.storage.words import WHITE_SPACE, single_spaced

_FILES = ("audio", "audio_filepath", "path", "file")
_IDS = ("id", "utterance", *_FILES, "name")
"""Keys of a record's id; the first that it has counts, as `name` may be that of a speaker.

Of the path of a file the id is the name without folder, suffix and white space.
"""
_OF_A_HYPOTHESIS = "pred_text"
"""Where NeMo's manifests have what was recognised; `text` is the reference."""


_HALF = re.compile(r"[\ud800-\udfff]")
_PARTS = ("segments", "transcription")
"""Where Whisper, WhisperX and whisper.cpp have the parts of a recording."""


class _Record(NamedTuple):
    id: str
    text: str | None
    """None: of a recording that could not be read, or words of a stream that may change yet."""
    speaker: str | None = None
    part: bool = False
    """Whether it is an utterance of a stream, which has several."""
    place: str | None = None
    """Where its id comes from a file: its path, and of a part where it begins."""
    key: str = "text"
    """Where its text was."""


def read_json_texts(path: Path, side: Side = "ref") -> tuple[dict[str, str], dict[str, str]]:
    """Read transcripts, and speakers where there are any.

    - `.jsonl`: a record per line: a lhotse cut (the texts of its supervisions are concatenated), or
      a mapping with `id` (or `utterance`, the path of a file under `audio`, `audio_filepath`,
      `path` or `file`, or `name`), `text`, and optionally `speaker`. One with an `error` and no
      text (or null), as `toolkit transcribe` writes it of a recording that it cannot read, is left
      out. Of its streams (`final`) the final utterances are concatenated. A record with an `offset`
      is named by the path of its file and this, and so is one whose file is named as another.
    - any other: a list of such records, or a mapping from ids to texts or records; or records line
      by line as well; or Whisper's `text`, `segments` or `transcription` of a recording, which is
      named like the file unless it has an id.

    Args:
      path: gzipped where its name ends in .gz.
      side: of a record with a `pred_text`, as NeMo writes them, that is the hypothesis; where some
        have one, the others have no hypothesis.

    Returns:
      Text by id, and speaker by id.

    Raises:
      TranscriptError: a record is malformed; the message names the file and the line or record.
    """
    texts: dict[str, str] = {}
    speakers: dict[str, str] = {}
    parts: set[str] = set()
    records = list(_records(path, side))
    recognised = any(record.key == _OF_A_HYPOTHESIS for _, record in records)
    for place, record in _named_apart(records):
        id, text, speaker, part, *_ = record
        if text is None or (recognised and record.key != _OF_A_HYPOTHESIS):
            continue
        for value in (id, text, speaker or ""):
            if _HALF.search(value):
                raise TranscriptError(
                    f"{place}: {quoted(value)} has half of a surrogate pair, which is no character "
                    "and cannot be written: mend the text"
                )
        for value in (id, speaker or ""):
            if set(value) & set(WHITE_SPACE[1:]):
                raise TranscriptError(
                    f"{place}: {quoted(value)} has a tab or an end of line, which tables of scores "
                    "cannot hold: rename it"
                )
        if id in texts and not (part and id in parts):
            raise TranscriptError(
                f"{place}: the id {quoted(id)} occurs a second time: give each record an `id`"
            )
        texts[id] = single_spaced(f"{texts.get(id, '')} {text}")
        parts |= {id} if part else set()
        if speaker is not None:
            speakers[id] = speaker
    return texts, speakers


def _records(path: Path, side: Side) -> Iterator[tuple[str, _Record]]:
    """Yield (place in the file, record)."""
    by_line = Path(path).name.removesuffix(".gz").endswith(".jsonl")
    parsed = None
    if not by_line:
        try:
            parsed = _parsed(str(path), content(path))
        except TranscriptError:
            by_line = _has_records_in_lines(path)
            if not by_line:
                raise
    if by_line:
        for number, line in numbered_lines(path):
            if line.strip():
                place = f"{path}:{number}"
                yield place, _record(place, _parsed(place, line), side)
        return
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
        raise TranscriptError(f"{path}: neither a list of records nor a mapping of ids to texts")


def _has_records_in_lines(path: Path) -> bool:
    """Whether the first line of a file is a record by itself, and not all of the file."""
    filled = [line for _, line in numbered_lines(path) if line.strip()]
    try:
        return len(filled) > 1 and isinstance(json.loads(filled[0]), dict)
    except (ValueError, RecursionError):
        return False


def _named_apart(records: Sequence[tuple[str, _Record]]) -> Iterator[tuple[str, _Record]]:
    """Give records whose files have the same name longer ids."""
    seen = Counter(record.id for _, record in records if record.place is not None)
    for place, record in records:
        if record.place is not None and seen[record.id] > 1 and not record.part:
            record = record._replace(id=record.place)
        yield place, record


def _is_record(plain: dict) -> bool:
    """Whether a mapping is one record, not one from ids to texts."""
    texts = ("text", _OF_A_HYPOTHESIS, "supervisions")
    return any(key in plain for key in _IDS) and any(key in plain for key in texts)


def _id_key(record: dict) -> str | None:
    return next((key for key in _IDS if type(record.get(key)) in (str, int)), None)


def _parsed(place: str, text: str | bytes) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            [(key, _), *_] = Counter(key for key, _ in pairs).most_common(1)
            raise TranscriptError(f"{place}: {quoted(key)} occurs a second time")
        return found

    try:
        return json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise TranscriptError(f"{place}: not JSON: {error}") from error


def _record(place: str, record: Any, side: Side) -> _Record:
    if not isinstance(record, dict):
        raise TranscriptError(f"{place}: a record must be a mapping with `id` and `text`")
    key = _id_key(record)
    if key is None:
        raise TranscriptError(f"{place}: the record has no `id`")
    id, longer = str(record[key]), None
    if key in _FILES:
        # White space goes as in the ids of a folder of texts.
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
        raise TranscriptError(f"{place}: {quoted(id)}: its supervisions are not a list of records")
    texts = [_text(part, side) for part in parts]
    for part, text in zip(parts, texts, strict=True):
        if not isinstance(text, str):
            name = _key(part, side)
            lacks = f"has no `{name}`" if text is None else f"has a `{name}` that is no string"
            raise TranscriptError(f"{place}: {quoted(id)} {lacks}")
    speakers = [part.get("speaker") for part in parts]
    names = {speaker for speaker in speakers if isinstance(speaker, str)}
    speaker = names.pop() if len(names) == 1 else None
    part, key = record.get("final") is True, _key(parts[0], side) if parts else ""
    return _Record(id, " ".join(texts), speaker, part, longer, key)


def _text(part: dict, side: Side) -> Any:
    """Return the text of a record, or of its parts where it has none."""
    key = _key(part, side)
    parts = next((part[name] for name in _PARTS if isinstance(part.get(name), list)), None)
    if key in part or parts is None:
        return part.get(key)
    own = [each.get("text") for each in parts if isinstance(each, dict)]
    texts = [text for text in own if isinstance(text, str)]
    return " ".join(texts) if len(texts) == len(parts) else None


def _key(part: dict, side: Side) -> str:
    return _OF_A_HYPOTHESIS if side == "hyp" and _OF_A_HYPOTHESIS in part else "text"
