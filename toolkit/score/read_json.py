"""Transcripts in JSON: lhotse's cuts, Whisper's results, and records with an id and a text."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from toolkit.score.lines import Side, TranscriptError, content, numbered_lines
from toolkit.storage.reading import quoted
from toolkit.storage.whitespace import single_spaced

_FILES = ("audio", "audio_filepath", "path", "file")
_IDS = ("id", "utterance", *_FILES, "name")
"""Keys of a record's id; the first that it has counts, as `name` may be that of a speaker.

Of the path of a file the id is the name without folder, suffix and white space.
"""
_OF_A_HYPOTHESIS = "pred_text"
"""Where NeMo's manifests have what was recognised; `text` is the reference."""


class _Record(NamedTuple):
    id: str
    text: str | None
    """None: of a recording that could not be read, or words of a stream that may change yet."""
    speaker: str | None = None
    part: bool = False
    """Whether it is an utterance of a stream, which has several."""


def read_json_texts(path: Path, side: Side = "ref") -> tuple[dict[str, str], dict[str, str]]:
    """Read transcripts, and speakers where there are any.

    - `.jsonl`: a record per line: a lhotse cut (the texts of its supervisions are concatenated), or
      a mapping with `id` (or `utterance`, the path of a file under `audio`, `audio_filepath`,
      `path` or `file`, or `name`), `text`, and optionally `speaker`. One with an `error` and no
      text (or null), as `toolkit transcribe` writes it of a recording that it cannot read, is left
      out. Of its streams (`final`) the final utterances are concatenated.
    - any other: a list of such records, or a mapping from ids to texts or records; or records line
      by line as well; or Whisper's `text` and `segments` of a recording, named like the file.

    Args:
      path: gzipped where its name ends in .gz.
      side: of a record with a `pred_text`, as NeMo writes them, that is the hypothesis.

    Returns:
      Text by id, and speaker by id.

    Raises:
      TranscriptError: a record is malformed; the message names the file and the line or record.
    """
    texts: dict[str, str] = {}
    speakers: dict[str, str] = {}
    parts: set[str] = set()
    for place, record in _records(path, side):
        id, text, speaker, part = record
        if text is None:
            continue
        if id in texts and not (part and id in parts):
            raise TranscriptError(f"{place}: the id {quoted(id)} occurs a second time")
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
    if isinstance(parsed, dict) and isinstance(parsed.get("segments"), list):
        name = Path(path).name.removesuffix(".gz")
        yield str(path), _record(str(path), {"file": name, **parsed}, side)
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


def _parsed(place: str, text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TranscriptError(f"{place}: not JSON: {error}") from error


def _record(place: str, record: Any, side: Side) -> _Record:
    if not isinstance(record, dict):
        raise TranscriptError(f"{place}: a record must be a mapping with `id` and `text`")
    key = next((key for key in _IDS if isinstance(record.get(key), str)), None)
    if key is None:
        raise TranscriptError(f"{place}: the record has no `id`")
    # White space goes as in the ids of a folder of texts.
    id = "_".join(Path(record[key]).stem.split()) if key in _FILES else record[key]
    if record.get("text") is None and isinstance(record.get("error"), str):
        return _Record(id, None)
    if record.get("final") is False:
        return _Record(id, None)
    parts = record.get("supervisions", [record])
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise TranscriptError(f"{place}: {quoted(id)}: its supervisions are not a list of records")
    texts = [part.get(_key(part, side)) for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise TranscriptError(f"{place}: {quoted(id)} has no `text`")
    speakers = [part.get("speaker") for part in parts]
    names = {speaker for speaker in speakers if isinstance(speaker, str)}
    speaker = names.pop() if len(names) == 1 else None
    return _Record(id, " ".join(texts), speaker, record.get("final") is True)


def _key(part: dict, side: Side) -> str:
    return _OF_A_HYPOTHESIS if side == "hyp" and _OF_A_HYPOTHESIS in part else "text"
