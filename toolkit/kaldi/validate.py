"""Validates Kaldi data directories like validate_data_dir.sh."""

import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from toolkit.storage.reading import regular

_REQUIRED = ("utt2spk", "spk2utt", "text", "wav.scp")
_PER_UTTERANCE = (
    "feats.scp",
    "utt2warp",
    "vad.scp",
    "utt2lang",
    "utt2uniq",
    "utt2dur",
    "utt2num_frames",
)
_PER_SPEAKER = ("cmvn.scp", "spk2gender", "spk2warp")
_PER_RECORDING = ("reco2file_and_channel", "reco2dur")
_RESERVED = re.compile(rb"(?<!\w)(?:<s>|</s>|#0)(?!\w)")
_NUMBER = re.compile(rb"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_CONTROLS = "\t\n\v\f\r"
_TEXT_SPACES = "\v\f\r\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000"
_TEXT_SPACES += "".join(map(chr, range(0x2000, 0x200B)))
"""White space that `text` must not have: all of Unicode's except tab, newline and space."""


@dataclass(frozen=True)
class _Table:
    """A file of a data directory as rows of fields."""

    raw: bytes
    """Its content."""
    lines: list[bytes]
    rows: list[list[bytes]]
    """Fields of each line, separated by spaces and tabs as in awk."""

    @classmethod
    def read(cls, path: Path) -> "_Table":
        """Read a file as a table."""
        raw = regular(path).read_bytes()
        lines = raw.removesuffix(b"\n").split(b"\n") if raw else []
        rows = [[field for field in re.split(rb"[ \t]+", line) if field] for line in lines]
        return cls(raw, lines, rows)

    @property
    def keys(self) -> list[bytes]:
        """First field of each line; empty for a blank line."""
        return [row[0] if row else b"" for row in self.rows]


def data_dir_faults(folder: Path) -> list[str]:
    """List the faults for which validate_data_dir.sh --no-feats rejects a folder.

    The script stops at the first fault; this function lists all, each with file and line.
    `data_dir_remarks` lists faults that only later programs report.
    """
    folder = Path(folder)
    missing = [name for name in _REQUIRED if not (folder / name).is_file()]
    if missing:
        return [f"{folder}/{name}: no such file" for name in missing]
    return [f"{folder}/{fault}" for fault in _faults(_tables(folder))]


def data_dir_remarks(folder: Path) -> list[str]:
    """List faults that validate_data_dir.sh accepts and other programs may not.

    They are utterances without words, recordings without a file, speakers without utterances, times
    that are not numbers, and a text that is not UTF-8.
    """
    folder = Path(folder)
    if any(not (folder / name).is_file() for name in _REQUIRED):
        return []
    return [f"{folder}/{remark}" for remark in _remarks(_tables(folder))]


def _tables(folder: Path) -> dict[str, _Table]:
    """Read the tables of a folder."""
    names = (*_REQUIRED, "segments", *_PER_UTTERANCE, *_PER_SPEAKER, *_PER_RECORDING)
    return {name: _Table.read(folder / name) for name in names if (folder / name).is_file()}


def _faults(tables: dict[str, _Table]) -> Iterator[str]:
    """Yield all faults as `file:line: fault`."""
    for name, table in tables.items():
        yield from _order_faults(name, table)
    yield from _speaker_faults(tables["utt2spk"], tables["spk2utt"])
    yield from _text_faults(tables["text"])
    for number, line in enumerate(tables["wav.scp"].lines, 1):
        if re.match(rb"\S+\s+~", line):
            yield (
                f"wav.scp:{number}: no file, or a path that begins with ~, which Kaldi does not "
                "expand"
            )
    for name, is_valid in _ROWS.items():
        for number, row in enumerate(tables[name].rows if name in tables else (), 1):
            if not is_valid(row):
                yield f"{name}:{number}: {_EXPECTED_ROWS[name]}: {_printable(b' '.join(row))}"
    yield from _keys_faults(tables)


def _order_faults(name: str, table: _Table) -> Iterator[str]:
    """Find a missing final newline, and the first line out of order or repeated."""
    if not table.raw:
        yield f"{name}: is empty"
    elif not table.raw.endswith(b"\n"):
        yield f"{name}: the last line has no newline"
    previous_key = None
    for number, key in enumerate(table.keys, 1):
        if previous_key is not None and key <= previous_key:
            problem = (
                "occurs twice" if key == previous_key and key else "is not in the order of LC_ALL=C"
            )
            yield f"{name}:{number}: {_printable(key)!r} {problem}"
            return
        previous_key = key


def _speaker_faults(utt2spk: _Table, spk2utt: _Table) -> Iterator[str]:
    """Find a wrong speaker order, and contradictions between utt2spk and spk2utt."""
    for number, row in enumerate(utt2spk.rows, 1):
        if len(row) != 2:
            yield f"utt2spk:{number}: not `utterance speaker`: {_printable(b' '.join(row))}"
            return
    by_speaker = sorted(utt2spk.lines, key=lambda line: (_from_second_field(line), line))
    if utt2spk.lines != by_speaker and utt2spk.keys == sorted(set(utt2spk.keys)):
        rows = zip(utt2spk.keys, utt2spk.lines, by_speaker, strict=True)
        first_key = next(key for key, line, sorted_line in rows if line != sorted_line)
        yield (
            f"utt2spk: is not in the order of the speakers at {_printable(first_key)}: let "
            "every utterance id begin with its speaker's name"
        )
    listed: list[list[bytes]] = []
    for line in spk2utt.lines:
        speaker, *ids = line.split() or [b""]
        # The script stops reading here, so the comparison below fails unless nothing follows.
        if not ids:
            break
        listed += [[id, speaker] for id in ids]
    if listed != utt2spk.rows:
        yield "spk2utt: does not have the utterances and speakers of utt2spk in the same order"


def _from_second_field(line: bytes) -> bytes:
    """Return the key of `sort -k2`: the line from the blanks after its first field."""
    return re.sub(rb"^[ \t]*[^ \t]*", b"", line)


def _text_faults(text: _Table) -> Iterator[str]:
    """Find characters and words that Kaldi rejects in transcripts."""
    decoded = _decoded(text.raw)
    if decoded is not None:
        for number, line in enumerate(decoded.removesuffix("\n").split("\n"), 1):
            bad_character = next((c for c in line if c in _TEXT_SPACES or _is_unprintable(c)), None)
            if bad_character is not None:
                yield (
                    f"text:{number}: has the character U+{ord(bad_character):04X}"
                    f"{' (carriage return)' if bad_character == chr(13) else ''}, "
                    "which Kaldi refuses"
                )
    for number, raw in enumerate(text.lines, 1):
        reserved_word = _RESERVED.search(raw)
        if reserved_word:
            id, word = _printable(raw.split()[0]), _printable(reserved_word[0])
            yield f"text:{number}: {id} has the word {word}, which Kaldi reserves"


def _decoded(raw: bytes) -> str | None:
    """Decode UTF-8; None if the bytes are invalid."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def _is_unprintable(character: str) -> bool:
    """Whether a character is a control or unassigned, except white space."""
    return character not in _CONTROLS and unicodedata.category(character) in ("Cc", "Cn")


def _keys_faults(tables: dict[str, _Table]) -> Iterator[str]:
    """Find keys that tables lack, or that are no utterance, speaker or recording."""
    utterances, speakers = tables["utt2spk"].keys, tables["spk2utt"].keys
    recordings = utterances
    expected = {name: utterances for name in ("text", *_PER_UTTERANCE)}
    if "segments" in tables:
        recording_ids = {row[1] if len(row) > 1 else b"" for row in tables["segments"].rows}
        recordings, expected["segments"] = sorted(recording_ids), utterances
    expected |= {name: recordings for name in ("wav.scp", *_PER_RECORDING)}
    expected |= {name: speakers for name in _PER_SPEAKER}
    for name, keys in expected.items():
        if name in tables and tables[name].keys != keys:
            present_keys = set(tables[name].keys)
            missing, extra = sorted(set(keys) - present_keys), sorted(present_keys - set(keys))
            if missing:
                yield f"{name}: lacks {len(missing)} entries, such as {_printable(missing[0])}"
            if extra:
                yield f"{name}: has {len(extra)} unexpected entries, such as {_printable(extra[0])}"


def _value(field: bytes) -> float | bytes:
    """Return a field as awk compares it: a number if it looks like one, else text."""
    return float(field) if _NUMBER.fullmatch(field) else field


def _above(field: bytes, threshold: bytes) -> bool:
    """Compare two fields like awk: as numbers if both are numbers, else as text."""
    a, b = _value(field), _value(threshold)
    return a > b if isinstance(a, float) and isinstance(b, float) else field > threshold


def _is_positive(row: list[bytes]) -> bool:
    """Whether a row is a key and a number above 0."""
    return len(row) == 2 and _above(row[1], b"0")


def _is_count(row: list[bytes]) -> bool:
    """Whether a row is a key and a whole number above 0."""
    value = _value(row[1]) if len(row) == 2 else b""
    return isinstance(value, float) and value > 0 and value.is_integer()


def _is_warp(row: list[bytes]) -> bool:
    """Whether a row is a key and a warp factor between 0.5 and 1.5."""
    return len(row) == 2 and _above(row[1], b"0.5") and _above(b"1.5", row[1])


_ROWS: dict[str, Callable[[list[bytes]], bool]] = {
    "segments": lambda row: len(row) == 4 and _above(row[3], row[2]),
    "reco2file_and_channel": lambda row: len(row) == 3 and row[2] in (b"A", b"B", b"1"),
    "spk2gender": lambda row: len(row) == 2 and row[1] in (b"m", b"f"),
    "spk2warp": _is_warp,
    "utt2warp": _is_warp,
    "utt2dur": _is_positive,
    "reco2dur": _is_positive,
    "utt2num_frames": _is_count,
}
"""Condition that every row of a table must meet, by table."""
_EXPECTED_ROWS = {
    "segments": "not `utterance recording start end`",
    "reco2file_and_channel": "not `recording file A` or `recording file B`",
    "spk2gender": "not `speaker m` or `speaker f`",
    "spk2warp": "not a factor between 0.5 and 1.5",
    "utt2warp": "not a factor between 0.5 and 1.5",
    "utt2dur": "not a number above 0",
    "reco2dur": "not a number above 0",
    "utt2num_frames": "not a whole number above 0",
}


def _remarks(tables: dict[str, _Table]) -> Iterator[str]:
    """Yield all remarks as `file:line: remark`."""
    if _decoded(tables["text"].raw) is None:
        yield "text: is not UTF-8"
    lacking = {"text": "word", "wav.scp": "file or command", "spk2utt": "utterance"}
    for name, noun in lacking.items():
        for number, row in enumerate(tables[name].rows, 1):
            if len(row) == 1:
                yield f"{name}:{number}: {_printable(row[0])} has no {noun}"
    for name in ("segments", "utt2dur", "reco2dur"):
        for number, row in enumerate(tables[name].rows if name in tables else (), 1):
            times = row[2:] if name == "segments" else row[1:]
            if any(not _NUMBER.fullmatch(time) for time in times) and _ROWS[name](row):
                yield f"{name}:{number}: a time is not a number: {_printable(b' '.join(row))}"


def _printable(text: bytes) -> str:
    """Decode bytes for a message, escaping invalid ones."""
    return text.decode(errors="backslashreplace")
