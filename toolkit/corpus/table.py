"""Reads a corpus from a table: a CSV file with a line per utterance."""

import csv
import io
import logging
import math
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from lhotse import MonoCut

from toolkit.corpus.manifest import ManifestError, flag_missing_speaker
from toolkit.corpus.pairing import BAD_LINE, NOT_UTF8, AudioSegment, count_from_one, pair
from toolkit.storage.lines import LineCounts, decoded_lines, is_faulty, too_many
from toolkit.storage.paths import PathMap, is_of_windows, map_path, printable
from toolkit.storage.reading import quoted

COLUMNS: dict[str, tuple[str, ...]] = {
    "audio": (
        *("audio", "audio_path", "audio_file", "audio_filepath", "path", "file", "file_path"),
        *("filepath", "file_name", "filename", "wav", "wav_path", "recording"),
    ),
    "text": ("text", "transcript", "transcription", "sentence", "words", "utterance_text"),
    "speaker": ("speaker", "speaker_id", "speaker_name", "spk", "spk_id", "client_id"),
    "id": ("id", "utt", "utt_id", "uttid", "utterance", "utterance_id"),
    "start": ("start", "start_time", "begin"),
    "end": ("end", "end_time", "stop"),
    "channel": ("channel", "channel_id", "audio_channel"),
    "split": ("split", "part", "set", "subset", "partition"),
}
"""Accepted spellings of each column, in any letter case, with underscores, spaces or hyphens."""

PARTS = {
    **dict.fromkeys(("dev", "valid", "validation", "validate", "val", "development"), "dev"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
    **dict.fromkeys(("train", "training"), "train"),
}
"""Parts by value of the split column; any other value is a part's own name."""

SUFFIXES = (".csv", ".tsv")
"""Suffixes of tables in a folder."""
DELIMITERS = "\t,;"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Row:
    """A line of the table, by column name."""

    line: int
    """Line number in the file, from 1."""
    values: Mapping[str, str]
    """Cells by column name, a key of `COLUMNS`; only for columns that the table has."""
    fault: tuple[str, str] | None = None
    """(kind, detail) of a line that is not UTF-8 or does not fit the header."""

    def __getitem__(self, name: str) -> str:
        return self.values.get(name, "")


def read_table(path: Path, path_map: PathMap = ()) -> dict[str, list[MonoCut]]:
    """Read a table into cuts by part; without a split column all cuts belong to "train".

    - The columns `audio` and `text` are required; `speaker`, `id`, `start`, `end` (seconds),
      `channel` and `split` are optional. `COLUMNS` has other spellings. Other columns are ignored.
    - `channel` names the channel in a file of several: A, B, ..., left and right, or 1, 2, ...;
      numbers count from 0 if one of them is 0. If only some lines of a file name a channel, the
      others are faults; if none does, all channels are averaged.
    - Paths are mapped by `path_map`; relative ones start from the table's folder. If there is no
      such file, these are tried: the name in other Unicode normal forms, with / for \\, and in the
      folder `clips` beside the table, as in Common Voice.
    - Without `speaker`, or if it is empty, the recording is the speaker, and the check warns. Names
      that differ only in their Unicode normal form are the same speaker.
    - Without `id` an utterance is named after its audio file, followed by its times if the table
      has them.
    - Seconds may have a decimal comma, as in tables with semicolons.
    - Without `end`, or if it is empty or -1, an utterance lasts to the end of its file.

    Returns:
      Cuts by part; faults are recorded in them for the check to report.

    Raises:
      ManifestError: a column is missing, the file is not text, or too many lines have stray
        quotation marks or another number of fields than the header.
    """
    # 1. Rows, with paths as on disk and channels counted from 1.
    folder = path.absolute().parent
    rows = [_as_on_disk(_mapped(row, path_map), folder) for row in read_rows(path)]
    if not rows:
        raise ManifestError(f"{path} contains no utterances: there is no line below the header")
    ids, recordings = _ids(rows, path), _recordings(rows)
    channels = count_from_one(row["channel"] or None for row in rows)
    rows = [
        replace(row, values={**row.values, "channel": channel or ""})
        for row, channel in zip(rows, channels, strict=True)
    ]
    # 2. Sort the rows by part, and make their cuts.
    by_part: dict[str, list[tuple[str, Row]]] = {}
    fitting = [row for row in rows if row.fault is None or row.fault[0] != BAD_LINE]
    part = _part(fitting[0], path)
    for id, row in zip(ids, rows, strict=True):
        # The split of a faulty line is unknown, so the line gets the part of the previous line.
        if row.fault is None or row.fault[0] != BAD_LINE:
            part = _part(row, path)
        by_part.setdefault(part, []).append((id, row))
    return {part: _cuts(rows, recordings, path) for part, rows in by_part.items()}


def tables_in(folder: Path) -> dict[str, Path]:
    """Return the tables in a folder by part, which is the file name without suffix.

    Raises:
      ManifestError: two tables have the same part.
    """
    tables: dict[str, Path] = {}
    for path in sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES):
        if (first := tables.setdefault(path.stem, path)) != path:
            raise ManifestError(
                f"{folder} contains two tables for the same part, {first.name} and {path.name}: "
                "remove one of them"
            )
    return tables


def read_part(path: Path, path_map: PathMap = ()) -> list[MonoCut]:
    """Read a table as a single part, ignoring its split column; see `read_table`."""
    return [cut for cuts in read_table(path, path_map).values() for cut in cuts]


def _cuts(rows: list[tuple[str, Row]], recordings: Mapping[str, str], path: Path) -> list[MonoCut]:
    """Make the cuts of one part's rows."""
    speakers = {id: unicodedata.normalize("NFC", row["speaker"]) for id, row in reversed(rows)}
    unnamed = {
        id: f"{path}:{row.line} names no speaker"
        if "speaker" in row.values
        else f"{path} has no column called speaker"
        for id, row in rows
        if not row["speaker"]
    }
    cuts = pair(
        [(id, "" if row.fault else row["text"]) for id, row in rows],
        [(id, _audio(row, recordings, path)) for id, row in rows],
        lambda id, _: speakers[id],
        str(path),
    )
    for cut in cuts:
        if cut.id in unnamed:
            flag_missing_speaker(cut, unnamed[cut.id])
    return cuts


def _mapped(row: Row, path_map: PathMap) -> Row:
    """Apply the path mapping to a row's audio path."""
    audio = map_path(row["audio"], path_map)
    return row if audio == row["audio"] else replace(row, values={**row.values, "audio": audio})


def _as_on_disk(row: Row, folder: Path) -> Row:
    """Correct a row's audio path to the spelling that exists in the file system."""
    name = row["audio"]
    if not name or row.fault or os.path.exists(folder / name):
        return row
    slashes = name.replace("\\", "/")
    forms = (unicodedata.normalize(form, slashes) for form in ("NFC", "NFD"))
    candidates = [prefix + form for prefix in ("", CLIPS) for form in (slashes, *forms)]
    existing = next((path for path in candidates if os.path.exists(folder / path)), name)
    return replace(row, values={**row.values, "audio": existing})


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a table, without header and blank lines.

    Raises:
      ManifestError: as for `read_table`.
    """
    # 1. The text, without a first line that names the separator for spreadsheets.
    counts = LineCounts()
    text = _decode(path, counts)
    separator = _SEPARATOR_LINE.match(text)
    text = text[separator.end() :] if separator else text
    lines_before = 1 if separator else 0
    first = io.StringIO(text, newline="").readline()
    if _ZERO in first or too_many(counts.zero_bytes, counts.lines):
        raise ManifestError(f"{path} is in UTF-16 or is not a text file: save it as CSV in UTF-8")
    if not first.strip():
        raise ManifestError(
            f"{path}: the first line is empty. Write the column names there, such as {_EXAMPLE}"
        )
    # 2. The delimiter: the most frequent one in the first line, or the first in DELIMITERS.
    delimiter = max(DELIMITERS, key=lambda mark: (first.count(mark), -DELIMITERS.index(mark)))
    # Between tabs, quotation marks are text; elsewhere they quote, and are doubled within a text.
    quoting = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
    # 3. The lines. Faulty lines are reported later; too many of them end the reading.
    header: list[str] = []
    misfits: list[str] = []
    total = 0
    for record in _records(text, delimiter, quoting):
        line = lines_before + record.line
        where, fault = f"{path}:{line}", None
        fields = (field.replace(_ZERO, "\0") for field in record.fields)
        cells = [_unquote(field) if delimiter == "\t" else field.strip() for field in fields]
        quotation = f"{where}: {record.error}; is a quotation mark open or not doubled?"
        if not header:
            if record.error:
                raise ManifestError(quotation)
            header = _map_columns(cells, path)
            unused = [name for name, role in zip(cells, header, strict=True) if name and not role]
            if unused:
                logger.info("%s: these columns are not used: %s", path, ", ".join(unused[:20]))
            continue
        if not any(cells):
            continue
        total += 1
        values = {role: printable(cell) for role, cell in zip(header, cells, strict=False) if role}
        if faulty := [cell for cell in cells if is_faulty(cell)]:
            fault = (NOT_UTF8, f"{where}: {counts.describe(faulty[0])}")
        elif record.error:
            misfits.append(quotation)
            fault = (BAD_LINE, quotation)
        elif len(cells) != len(header):
            misfits.append(
                f"{where}: {len(cells)} fields, but the first line names {len(header)} columns;"
                f" {_ADVICE[delimiter]}"
            )
            fault = (BAD_LINE, misfits[-1])
        yield Row(line, values, fault)
    if too_many(len(misfits), total):
        raise ManifestError(misfits[0])


@dataclass(frozen=True)
class _Record:
    """The fields of a CSV record, or its error."""

    line: int
    """Line number of the record's last line; of its first line if there is an error."""
    fields: list[str]
    error: str = ""
    """Fault in the quotation marks; `fields` are then a guess from the record's first line."""


def _records(text: str, delimiter: str, quoting: Literal[0, 3]) -> Iterator[_Record]:
    """Split the text of a table into CSV records.

    A quotation mark that is open or not doubled makes only its own line a faulty record: reading
    continues at the next line, not after all lines up to the next quotation mark.
    """
    lines = list(io.StringIO(text, newline=""))
    begin = num_columns = 0
    while begin < len(lines):
        remaining_lines = (lines[number] for number in range(begin, len(lines)))
        reader = csv.reader(remaining_lines, delimiter=delimiter, quoting=quoting, strict=True)
        first = begin
        try:
            for fields in reader:
                end = begin + reader.line_num
                num_columns = num_columns or len(fields)
                if end - first > 1 and len(fields) != num_columns:
                    raise csv.Error(f"a field continues to line {end}")
                yield _Record(end, fields)
                first = end
            return
        except csv.Error as error:
            # Read the line alone and without `strict`, so that an open mark ends with the line.
            line = lines[first].rstrip("\r\n").replace("\r", " ")[:_LONGEST_LINE]
            cells = next(csv.reader([line], delimiter=delimiter, quoting=quoting), [])
            yield _Record(first + 1, cells, str(error))
            begin = first + 1


_ZERO = "\udc00"
"""Stands for a zero byte, which Python 3.10's csv module refuses."""
_SEPARATOR_LINE = re.compile(r"\"?sep=[,;\t]\"?\n", re.IGNORECASE)
"""A first line that names the separator for spreadsheets."""
CLIPS = "clips/"
_LONGEST_LINE = 100_000
"""Characters of a faulty line that are read, below the csv module's limit for a field."""
_EXAMPLE = "audio,text,speaker"
_PART = re.compile(r"\w[\w.-]*")
_ADVICE = {
    "\t": "a text must not contain tabs",
    ",": "put a text with commas in quotation marks",
    ";": "put a text with semicolons in quotation marks",
}
"""What to do about a line with too many or too few fields, by delimiter."""


def _decode(path: Path, counts: LineCounts) -> str:
    """Decode a table; faulty bytes become surrogates (`toolkit.storage.lines`, `_ZERO`)."""
    lines = decoded_lines(path, ManifestError, counts)
    return "\n".join(line for _, line in lines).replace("\0", _ZERO)


def _unquote(field: str) -> str:
    """Remove the quotation marks that spreadsheets put around fields of tab-separated tables."""
    field = field.strip()
    match = re.fullmatch(r'"((?:[^"]|"")*)"', field)
    return match[1].replace('""', '"').strip() if match else field


def _map_columns(names: list[str], path: Path) -> list[str]:
    """Map each column to its name in `COLUMNS`, or to "" if it is ignored."""
    spelled = {name: role for role, names in COLUMNS.items() for name in names}
    roles = [spelled.get(re.sub(r"[\s-]+", "_", name.lower()), "") for name in names]
    for role, count in Counter(filter(None, roles)).items():
        if count > 1:
            columns = [name for name, r in zip(names, roles, strict=True) if r == role]
            pair = " and ".join(map(quoted, columns[:2]))
            raise ManifestError(
                f"{path}: the columns {pair} both mean {role!r}: rename one of them"
            )
    for role in ("audio", "text"):
        if role not in roles:
            first_columns, hint = ", ".join(map(quoted, names[:20])), ""
            if names[0].startswith("{"):
                hint = "it holds JSON, like NeMo's manifests: write its fields as columns; "
            elif "|" in names[0]:
                hint = "| is not a separator: use tabs, commas or semicolons; "
            raise ManifestError(
                f"{path}: no column {role!r} in the first line ({first_columns}); {hint}"
                f"write the column names there, such as {_EXAMPLE}. Other accepted names for "
                f"{role!r}: " + ", ".join(COLUMNS[role][1:])
            )
    return roles


def _ids(rows: list[Row], path: Path) -> list[str]:
    """Return the utterance ids: the id column, or names made from audio file and times."""
    stems = {row["audio"]: Path(row["audio"]).stem for row in rows}
    if len(set(stems.values())) < len(stems):  # files of the same name in different folders
        stems = {audio: _relative_name(audio, path) for audio in stems}
    ids = []
    for row in rows:
        times = [row[name] for name in ("start", "end") if row[name]]
        id = row["id"] or "-".join([stems[row["audio"]], *times])
        ids.append(re.sub(r"\s+", "_", id) or f"line-{row.line}")
    return ids


def _relative_name(audio: str, path: Path) -> str:
    """Join an audio path, relative to the table's folder, into a single word."""
    whole = Path(_without_suffix(audio))
    folder = path.absolute().parent
    inside = whole.relative_to(folder) if whole.is_relative_to(folder) else whole
    return "-".join(piece for piece in inside.parts if piece not in ("/", ".", ".."))


def _part(row: Row, path: Path) -> str:
    """Return the part of the corpus that a row belongs to."""
    name = row["split"].lower()
    if "split" in row.values and not name:
        raise ManifestError(f"{path}:{row.line}: the split is empty; write train, dev or test")
    if name and not _PART.fullmatch(name):  # the part becomes the name of a file
        raise ManifestError(
            f"{path}:{row.line}: the name of a split cannot be {quoted(name)}. Use only letters, "
            "digits, _, . and -, and begin with a letter, a digit or _"
        )
    return PARTS.get(name, name) or "train"


def _audio(row: Row, recordings: Mapping[str, str], path: Path) -> AudioSegment:
    """Return a row's audio, or its fault."""
    if row.fault:
        return AudioSegment(row["audio"], fault=row.fault)
    if not row["audio"]:
        return AudioSegment("", fault=("missing-audio", f"{path}:{row.line} names no audio file"))
    file, recording = str(path.absolute().parent / row["audio"]), recordings[row["audio"]]
    if is_of_windows(row["audio"]) and not os.path.exists(file):
        file = row["audio"]
    try:
        start, end = _seconds(row["start"]) or 0.0, _seconds(row["end"])
    except ValueError:
        times = f"{quoted(row['start'])} to {quoted(row['end'])}"
        detail = f"{path}:{row.line}: not seconds, such as 12.5: {times}"
        return AudioSegment(file, recording_id=recording, fault=("bad-segment", detail))
    return AudioSegment(file, start, end, recording, side=row["channel"] or None)


def _seconds(text: str) -> float | None:
    """Parse a time in seconds; None if it is empty."""
    if not text:
        return None
    seconds = float(text.replace(",", ".", 1))
    if not math.isfinite(seconds):
        raise ValueError
    return seconds


def _recordings(rows: list[Row]) -> dict[str, str]:
    """Return a recording name for each audio path: without suffix where that is unique."""
    files: dict[str, set[str]] = {}
    for row in rows:
        files.setdefault(_without_suffix(row["audio"]), set()).add(Path(row["audio"]).as_posix())
    names = {}
    for audio in {row["audio"] for row in rows}:
        stem = _without_suffix(audio)
        name = stem if len(files[stem]) == 1 else Path(audio).as_posix()
        names[audio] = re.sub(r"\s+", "_", name)
    return names


def _without_suffix(audio: str) -> str:
    """Return an audio path without its suffix."""
    path = Path(audio)
    return path.with_suffix("").as_posix() if path.name else path.as_posix()
