"""What Kaldi would refuse in a data directory."""

import re
from collections.abc import Iterator
from pathlib import Path

_FORBIDDEN = ("<s>", "</s>", "#0")
_OF_UTTERANCES = ("utt2dur", "utt2num_frames", "feats.scp", "vad.scp", "utt2lang", "utt2uniq")
_OF_SPEAKERS = ("cmvn.scp", "spk2gender", "spk2warp")
_POSITIVE = ("utt2dur", "utt2num_frames", "reco2dur")


def data_dir_faults(folder: Path) -> list[str]:
    """Find what Kaldi's validate_data_dir.sh (with --no-feats) would refuse; empty for nothing.

    Also what it accepts and later steps do not: an utterance without a word (validate_text.pl).
    It stops at the first fault; these are all, each naming its file and line.
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
    return {*plain, *_OF_UTTERANCES, *_OF_SPEAKERS}


def _table(path: Path) -> tuple[list[list[str]], list[str]]:
    """Read fields of lines; find lines out of order, twice there, or without an end."""
    raw = path.read_bytes()
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
        yield from _other_keys("segments", tables["segments"], utterances)
    for number, row in enumerate(tables["wav.scp"], 1):
        if len(row) < 2 or row[1].startswith("~"):
            yield f"wav.scp:{number}: no file, or one under ~, which Kaldi does not know"
    yield from _other_keys("text", tables["text"], utterances)
    yield from _other_keys("wav.scp", tables["wav.scp"], recordings)
    if "reco2dur" in tables:
        yield from _other_keys("reco2dur", tables["reco2dur"], recordings)
    for names, keys in ((_OF_UTTERANCES, utterances), (_OF_SPEAKERS, speakers)):
        for name in names:
            if name in tables:
                yield from _other_keys(name, tables[name], keys)
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
            f"utt2spk: is not in the order of the speakers at {wrong[0].decode()}: make speakers' "
            "names the beginnings of their utterances'"
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


def _other_keys(name: str, rows: list[list[str]], wanted: list[str]) -> Iterator[str]:
    """Say where a table's keys differ from those it should have."""
    keys = [row[0] for row in rows]
    if keys == wanted:
        return
    lacking, more = sorted(set(wanted) - set(keys)), sorted(set(keys) - set(wanted))
    if lacking:
        yield f"{name}: lacks {len(lacking)} entries, first {lacking[0]}"
    if more:
        yield f"{name}: has {len(more)} entries too many, first {more[0]}"


def _in_order(start: str, end: str) -> bool:
    number = re.compile(r"-?\d+(\.\d*)?([eE][-+]?\d+)?|-?\.\d+")
    return bool(number.fullmatch(start) and number.fullmatch(end) and float(end) > float(start))
