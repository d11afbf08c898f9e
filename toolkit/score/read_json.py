"""Transcripts in JSON: lhotse's cut manifests, and records with an id and a text."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toolkit.score.lines import TranscriptError, content, numbered_lines
from toolkit.storage.reading import quoted
from toolkit.storage.whitespace import single_spaced

_FILES = ("audio", "path", "file")
_IDS = ("id", "utterance", *_FILES, "name")
"""Keys of a record's id; the first that it has counts, as `name` may be that of a speaker.

Of the path of a file the id is the name without folder, suffix and white space.
"""


def read_json_texts(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Read transcripts, and speakers where there are any.

    - `.jsonl`: a record per line: a lhotse cut (the texts of its supervisions are concatenated), or
      a mapping with `id` (or `utterance`, the path of a file under `audio`, `path` or `file`, or
      `name`), `text`, and optionally `speaker`. One with an `error` and no text (or null), as
      `toolkit transcribe` writes it of a recording that it cannot read, is left out.
    - any other: a list of such records, or a mapping from ids to texts or records; or records line
      by line as well.

    Args:
      path: gzipped where its name ends in .gz.

    Returns:
      Text by id, and speaker by id.

    Raises:
      TranscriptError: a record is malformed; the message names the file and the line or record.
    """
    texts: dict[str, str] = {}
    speakers: dict[str, str] = {}
    for place, id, text, speaker in _records(path):
        if text is None:
            continue
        if id in texts:
            raise TranscriptError(f"{place}: the id {quoted(id)} occurs a second time")
        texts[id] = single_spaced(text)
        if speaker is not None:
            speakers[id] = speaker
    return texts, speakers


def _records(path: Path) -> Iterator[tuple[str, str, str | None, str | None]]:
    """Yield (place in the file, id, text, speaker) of each record."""
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
                yield place, *_record(place, _parsed(place, line))
        return
    if isinstance(parsed, dict):
        for id, value in parsed.items():
            place = f"{path}: {quoted(id)}"
            record = {"id": id, "text": value} if isinstance(value, str) else value
            record = {"id": id, **record} if isinstance(record, dict) else record
            yield place, *_record(place, record)
    elif isinstance(parsed, list):
        for number, value in enumerate(parsed, 1):
            place = f"{path}: record {number}"
            yield place, *_record(place, value)
    else:
        raise TranscriptError(f"{path}: neither a list of records nor a mapping of ids to texts")


def _has_records_in_lines(path: Path) -> bool:
    """Whether the first line of a file is a record by itself, and not all of the file."""
    filled = [line for _, line in numbered_lines(path) if line.strip()]
    try:
        return len(filled) > 1 and isinstance(json.loads(filled[0]), dict)
    except (ValueError, RecursionError):
        return False


def _parsed(place: str, text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TranscriptError(f"{place}: not JSON: {error}") from error


def _record(place: str, record: Any) -> tuple[str, str | None, str | None]:
    """Return (id, text, speaker) of a record; the text is None where there is an `error`."""
    if not isinstance(record, dict):
        raise TranscriptError(f"{place}: a record must be a mapping with `id` and `text`")
    key = next((key for key in _IDS if isinstance(record.get(key), str)), None)
    if key is None:
        raise TranscriptError(f"{place}: the record has no `id`")
    # White space goes as in the ids of a folder of texts.
    id = "_".join(Path(record[key]).stem.split()) if key in _FILES else record[key]
    if record.get("text") is None and isinstance(record.get("error"), str):
        return id, None, None
    parts = record.get("supervisions", [record])
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise TranscriptError(f"{place}: {quoted(id)}: its supervisions are not a list of records")
    texts = [part.get("text") for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise TranscriptError(f"{place}: {quoted(id)} has no `text`")
    speakers = [part.get("speaker") for part in parts]
    names = {speaker for speaker in speakers if isinstance(speaker, str)}
    return id, " ".join(texts), names.pop() if len(names) == 1 else None
