"""Validation of Kaldi data directories, as by Kaldi's validate_data_dir.sh."""

import re
from collections.abc import Iterator
from pathlib import Path

from toolkit.storage.reading import regular

_FORBIDDEN = ("<s>", "</s>", "#0")
_PER_UTTERANCE = ("utt2dur", "utt2num_frames", "feats.scp", "vad.scp", "utt2lang", "utt2uniq")
_PER_SPEAKER = ("cmvn.scp", "spk2gender", "spk2warp")
_POSITIVE = ("utt2dur", "utt2num_frames", "reco2dur")


def data_dir_faults(folder: Path) -> list[str]:
    """List what Kaldi's validate_data_dir.sh (with --no-feats) would refuse; empty if nothing.

    An utterance without a word, which it accepts and later steps do not (validate_text.pl), is a
    fault too. The script stops at the first fault; here all are listed, each with file and line.
    """
    folder = Path(folder)
    tables: dict[str, list[list[str]]] = {}
    faults: list[str] = []
    for name in ("utt2spk", "spk2utt", "text", "wav.scp"):
        if not (folder / name).is_file():
            faults.append(f"{folder}/{name}: no such file")
    if faults:
        return faults
    for path in sorted(folder.iterdir()):
        if path.name in _known_files():
            tables[path.name], found = _table(path)
            faults += found
    faults += [f"{folder}/{fault}" for fault in _faults(tables)]
    return faults


def _known_files() -> set[str]:
    plain = {"utt2spk", "spk2utt", "text", "wav.scp", "segments", "reco2dur"}
    return {*plain, *_PER_UTTERANCE, *_PER_SPEAKER}


def _table(path: Path) -> tuple[list[list[str]], list[str]]:
    """Read the fields of lines; find lines that are out of order, repeated or unterminated."""
    raw = regular(path).read_bytes()
    faults = []
    if not raw:
        return [], [f"{path}: is empty"]
    if not raw.endswith(b"\n"):
        faults.append(f"{path}: the last line has no newline")
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return [], [f"{path}: is not UTF-8"]
    rows = [line.split() for line in text.removesuffix("\n").split("\n")]
    before = b""
    for number, row in enumerate(rows, 1):
        key = row[0].encode() if row else b""
        if key <= before:
            how = "occurs twice" if key == before and key else "is not in the order of LC_ALL=C"
            faults.append(f"{path}:{number}: {key.decode()!r} {how}")
            break
        before = key
    return [row for row in rows if row], faults


def _faults(tables: dict[str, list[list[str]]]) -> Iterator[str]:
    utterances = [row[0] for row in tables["utt2spk"]]
    speakers = [row[0] for row in tables["spk2utt"]]
    yield from _speaker_faults(tables)
    yield from _text_faults(tables["text"])
    recordings = utterances
    if "segments" in tables:
        for number, row in enumerate(tables["segments"], 1):
            if len(row) != 4 or not _in_order(row[2], row[3]):
                yield f"segments:{number}: not `utterance recording start end`: {' '.join(row)}"
        recordings = sorted({row[1] for row in tables["segments"] if len(row) > 1}, key=str.encode)
        yield from _key_faults("segments", tables["segments"], utterances)
    for number, row in enumerate(tables["wav.scp"], 1):
        if len(row) < 2 or row[1].startswith("~"):
            yield f"wav.scp:{number}: no file, or a path that begins with ~, unknown to Kaldi"
    yield from _key_faults("text", tables["text"], utterances)
    yield from _key_faults("wav.scp", tables["wav.scp"], recordings)
    if "reco2dur" in tables:
        yield from _key_faults("reco2dur", tables["reco2dur"], recordings)
    for names, keys in ((_PER_UTTERANCE, utterances), (_PER_SPEAKER, speakers)):
        for name in names:
            if name in tables:
                yield from _key_faults(name, tables[name], keys)
    for name in _POSITIVE:
        for number, row in enumerate(tables.get(name, ()), 1):
            if len(row) != 2 or not _in_order("0", row[1]):
                yield f"{name}:{number}: not a number above 0: {' '.join(row)}"


def _speaker_faults(tables: dict[str, list[list[str]]]) -> Iterator[str]:
    for number, row in enumerate(tables["utt2spk"], 1):
        if len(row) != 2:
            yield f"utt2spk:{number}: not `utterance speaker`: {' '.join(row)}"
            return
    rows = [(id.encode(), speaker.encode()) for id, speaker in tables["utt2spk"]]
    by_speaker = sorted(rows, key=lambda row: (row[1], row[0]))
    if rows != by_speaker and rows == sorted(rows):
        wrong = next(a for a, b in zip(rows, by_speaker, strict=True) if a != b)
        yield (
            f"utt2spk: is not in the order of the speakers at {wrong[0].decode()}: let "
            "every utterance id begin with its speaker's name"
        )
    listed = {id: speaker for speaker, *ids in tables["spk2utt"] for id in ids}
    if listed != {id: speaker for id, speaker in tables["utt2spk"]}:
        yield "spk2utt: does not have the utterances and speakers of utt2spk"


def _text_faults(rows: list[list[str]]) -> Iterator[str]:
    for number, (id, *words) in enumerate(rows, 1):
        if not words:
            yield f"text:{number}: {id} has no word"
        for word in words:
            if word in _FORBIDDEN:
                yield f"text:{number}: {id} has the word {word}, which Kaldi reserves"


def _key_faults(name: str, rows: list[list[str]], expected: list[str]) -> Iterator[str]:
    """Yield how a table's keys differ from the expected ones."""
    keys = [row[0] for row in rows]
    if keys == expected:
        return
    lacking, more = sorted(set(expected) - set(keys)), sorted(set(keys) - set(expected))
    if lacking:
        yield f"{name}: lacks {len(lacking)} entries, first {lacking[0]}"
    if more:
        yield f"{name}: has {len(more)} unexpected entries, first {more[0]}"


def _in_order(start: str, end: str) -> bool:
    number = re.compile(r"-?\d+(\.\d*)?([eE][-+]?\d+)?|-?\.\d+")
    return bool(number.fullmatch(start) and number.fullmatch(end) and float(end) > float(start))
