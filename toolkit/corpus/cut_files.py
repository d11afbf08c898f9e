"""Reads corpora that lhotse has prepared as files of cuts or supervisions."""

import copy
import gzip
import json
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lhotse import MonoCut, SupervisionSegment
from lhotse.cut import Cut

from toolkit.corpus.manifest import ManifestError, flag_missing_speaker, parse_cut
from toolkit.corpus.pairing import BAD_LINE, AudioSegment, FaultyText, locate, pair
from toolkit.storage.lines import is_faulty, shown, too_many
from toolkit.storage.paths import PathMap, map_path
from toolkit.storage.reading import quoted, reading, regular, validated

logger = logging.getLogger(__name__)
SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz")
_PART = re.compile(r"(?:.*[_-])?cuts[_-](.+)|(.+)[_-]cuts")
_OTHER = re.compile(r"(?:^|[_-])(?:recordings|supervisions)(?:[_-]|$)")
_SUPERVISIONS = re.compile(r"(?:.*[_-])?supervisions[_-](.+)|(.+)[_-]supervisions|(supervisions)")
_TIMES = {"start": float, "duration": float}
_SUPERVISION = {"recording_id": str, **_TIMES}
_RECORDING = {"duration": float, "sources": [{"channels": [int]}]}
TRIMMED = 0.1
"""Seconds by which a supervision may exceed its cut, because times are rounded."""
ADVICE = "write it again with lhotse"


def cut_files(root: Path) -> dict[str, Path]:
    """Find the cut files in a folder; return them by part of the corpus.

    The part is what follows `cuts` in the name, as in `librispeech_cuts_train-clean-5.jsonl.gz`, or
    what precedes it. If no name has `cuts`, the part is the whole name of a `.jsonl` file. If there
    are no such files either, files of supervisions with a matching file of recordings are taken.
    `.json` files with other names are ignored.

    Raises:
      ManifestError: there is no such file, or two files have the same part.
    """
    if root.is_file():
        return {"train": root}
    # Three kinds of candidates: cuts, names, supervisions. The first kind that exists is taken.
    names, cuts, supervisions = [], [], []
    for path in sorted(root.glob("*.json*")):
        name, _, suffix = path.name.partition(".json")
        if not path.name.endswith(SUFFIXES):
            continue
        if _OTHER.search(name):
            match = _SUPERVISIONS.fullmatch(name)
            if match and _recordings_beside(path) is not None:
                supervisions.append((match[1] or match[2] or match[3], path))
        elif match := _PART.fullmatch(name):
            cuts.append((match[1] or match[2], path))
        elif suffix.startswith("l") or name == "cuts":
            names.append((name, path))
    parts: dict[str, Path] = {}
    for part, path in cuts or names or supervisions:
        if part in parts:
            raise ManifestError(
                f"{parts[part]} and {path} are, by their names, both the part {part} of the "
                "corpus: remove or rename one of the files"
            )
        parts[part] = path
    if not parts:
        raise ManifestError(
            f"{root} contains no file of cuts (*.jsonl or *.jsonl.gz), and no recordings and "
            "supervisions with matching names: write a file of cuts, for example with `lhotse cut "
            "simple`"
        )
    return parts


def read_cut_file(path: Path, path_map: PathMap = ()) -> list[MonoCut]:
    """Read the utterances of a file of lhotse cuts, one per supervision.

    A file of supervisions with a matching file of recordings can be read as well. Files contain
    lines of JSON, or one JSON array (`.json`).

    An utterance is named after its cut, or after its supervision if the cut has several. White
    space in the name becomes _, because ids in texts end at white space. Names of audio are mapped
    by `path_map`; relative ones are looked up in the file's folder and the folders above it. Copies
    at other speeds, which icefall adds to its cuts, are ignored, because the recipe makes its own.
    Lazy resampling is ignored, because the recipe resamples. These lines are not usable cuts: a
    damaged line, a mixed cut, a cut of several channels, or one with transforms other than speed
    and resampling. Each becomes an utterance with a fault, for the check to report.

    Raises:
      ManifestError: the file cannot be read, or too many of its lines are not usable cuts.
      UnsafeCutError: see `parse_cut`.
    """
    texts, audio, speakers, copies = [], [], {}, 0
    unusable: dict[str, ManifestError] = {}
    num_lines = 0
    for num_lines, (place, cut) in enumerate(_cuts(path), 1):
        if isinstance(cut, ManifestError):
            name = f"line-{num_lines}"
            unusable[name] = cut
            speakers[name] = "", place
            audio.append((name, AudioSegment(place, fault=(BAD_LINE, str(cut)))))
            continue
        if "Speed" in map(_name, cut.recording.transforms or []):
            copies += 1
            continue
        supervisions = cut.supervisions or [None]
        for supervision in supervisions:
            # Ids and speakers may be numbers, which lhotse stores as they are.
            name = cut.id if len(supervisions) == 1 else str(supervision.id)
            name = "_".join(name.split())
            audio.append((name, _audio(cut, supervision, path, path_map)))
            speaker = None if supervision is None else supervision.speaker
            speakers.setdefault(name, ("" if speaker is None else str(speaker), place))
            if supervision is not None and supervision.text is not None:
                text = str(supervision.text)
                texts.append((name, _faulty(text, place) if is_faulty(text) else text))
    if too_many(len(unusable), num_lines):
        raise next(iter(unusable.values()))
    if copies:
        logger.warning(
            "%s: left out %d speed-perturbed copies; use the setting `augment` instead",
            path,
            copies,
        )
    utterances = pair(texts, audio, lambda name, _: speakers[name][0], str(path))
    for utterance in utterances:
        speaker, place = speakers[utterance.id]
        if not speaker and utterance.id not in unusable:
            flag_missing_speaker(utterance, f"{place} names no speaker")
    return utterances


def _faulty(text: str, place: str) -> FaultyText:
    """Return a placeholder for a transcript that is not UTF-8."""
    return FaultyText(f"{place}: {shown(text)}")


def _cuts(path: Path) -> Iterator[tuple[str, MonoCut | ManifestError]]:
    """Yield (file with line or number, cut) of each cut; an error in place of an unusable cut."""
    # Supervisions become cuts with the recordings in the file beside theirs.
    is_other = _OTHER.search(path.name.partition(".json")[0])
    recordings_path = _recordings_beside(path) if is_other else None
    recordings = {}
    for place, item in manifest_items(recordings_path) if recordings_path is not None else ():
        with reading(place, ManifestError, ADVICE, "not a recording"):
            recordings[validated(item, {"id": str}, "it")["id"]] = item
    problem = "not a cut" if recordings_path is None else "cannot be read"
    for place, item in _items(path):
        if isinstance(item, ManifestError):
            yield place, item
            continue
        try:
            with reading(place, ManifestError, ADVICE, problem):
                if recordings_path is not None:
                    item = _cut_of_supervision(item, recordings, recordings_path)
                _check(item)
                cut: MonoCut | ManifestError = _usable(parse_cut(item, place), place)
        except ManifestError as error:
            cut = error
        yield place, cut


def _check(item: Any) -> None:
    """Check the types of a cut's fields, which lhotse does not check.

    Raises:
      ValueError, AttributeError: a field is missing or of another type; `reading` catches them.
    """
    if item.get("type") != "MonoCut":
        return
    validated(item, _TIMES)
    for supervision in item.get("supervisions") or []:
        validated(supervision, _TIMES)
    if recording := item.get("recording"):
        validated(recording, _RECORDING)


def manifest_items(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield (file with line or number, plain data) of each item of a lhotse manifest.

    A manifest is lines of JSON, or one JSON array if its name ends in `.json` or `.json.gz`.

    Raises:
      ManifestError: it cannot be read, or is not JSON.
    """
    for place, item in _items(path):
        if isinstance(item, ManifestError):
            raise item
        yield place, item


def _items(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield items as `manifest_items` does, with an error in place of a line that is not JSON."""
    opened = gzip.open if path.name.endswith(".gz") else open
    with (
        reading(path, ManifestError, ADVICE),
        opened(regular(path), "rt", encoding="utf-8", errors="surrogateescape") as file,
    ):
        if path.name.endswith((".json", ".json.gz")):
            items = validated(json.load(file), [Any])
            yield from ((f"{path}, item {number}", item) for number, item in enumerate(items, 1))
            return
        for number, line in enumerate(file, 1):
            place = f"{path}:{number}"
            if line.strip():
                try:
                    with reading(place, ManifestError, ADVICE, "not a cut"):
                        item = json.loads(line)
                except ManifestError as error:
                    item = error
                yield place, item


def _recordings_beside(path: Path) -> Path | None:
    """Return the file of recordings that belongs to a file of supervisions; None without one."""
    name, _, suffix = path.name.replace("supervisions", "recordings").rpartition(".json")
    same = Path(f"{name}.json{suffix}").name
    names = [same, *(f"{name}{suffix}" for suffix in SUFFIXES)]
    candidates = (path.with_name(candidate) for candidate in names if candidate != path.name)
    return next((file for file in candidates if file.is_file()), None)


def _cut_of_supervision(
    supervision: Any, recordings: Mapping[str, Any], path: Path
) -> dict[str, Any]:
    """Make the plain data of a cut from a supervision and its recording.

    Args:
      supervision: plain data of a lhotse supervision.
      recordings: plain data by id.
      path: path of the file of recordings.

    Raises:
      ValueError, KeyError, ...: it is not a supervision; `reading` catches them.
    """
    name = validated(supervision, _SUPERVISION, "it")["recording_id"]
    if name not in recordings:
        raise ValueError(f"{path} has no recording {quoted(name)}")
    channel = supervision.get("channel", 0)
    if isinstance(channel, list) and len(channel) == 1:
        channel = channel[0]
    id, start = str(supervision["id"]), supervision["start"]
    return {
        "id": id,
        "type": "MonoCut",
        "start": start,
        "duration": supervision["duration"],
        "channel": channel,
        "supervisions": [{**supervision, "start": 0.0, "channel": channel}],
        "recording": copy.deepcopy(recordings[name]),  # lhotse changes its argument
    }


def _usable(cut: Cut, place: str) -> MonoCut:
    """Return the cut if it is one channel of audio files; raise a ManifestError otherwise."""
    if not isinstance(cut, MonoCut) or cut.recording is None:
        kind = "cut without a recording" if isinstance(cut, MonoCut) else type(cut).__name__
        raise ManifestError(
            f"{place}: {cut.id} is a {kind}: give cuts of one channel (MonoCut), for example by"
            " `lhotse cut trim-to-supervisions`, which makes a cut of each supervision. Or give"
            " recordings and supervisions without cuts"
        )
    if not isinstance(cut.channel, int) or cut.channel < 0:
        raise ManifestError(
            f"{place}: {cut.id} has channel {cut.channel}, but channels are whole numbers from 0"
        )
    names = [source.source for source in cut.recording.sources]
    if not names or not all(isinstance(name, str) for name in names):
        raise ManifestError(f"{place}: {cut.id} names no audio file; {ADVICE}")
    for supervision in cut.supervisions:
        channel = supervision.channel
        channels = channel if isinstance(channel, list) else [channel]
        if cut.channel not in channels:
            raise ManifestError(
                f"{place}: {cut.id} has channel {cut.channel}, but its supervision {supervision.id}"
                f" has channel {channel}: correct one of the two channels, or give recordings and"
                " supervisions without cuts"
            )
    unsupported = {
        name
        for name in map(_name, cut.recording.transforms or [])
        if name not in ("Speed", "Resample")
    }
    if unsupported:
        raise ManifestError(
            f"{place}: {cut.id} is changed by {', '.join(sorted(unsupported))}, which is not"
            " supported: give cuts without such transforms, or write the changed audio to files"
        )
    return cut


def _name(transform: Any) -> str:
    """Return the name of a transform given as plain data or as a lhotse object."""
    return transform["name"] if isinstance(transform, Mapping) else type(transform).__name__


def _audio(
    cut: MonoCut, supervision: SupervisionSegment | None, path: Path, path_map: PathMap
) -> AudioSegment:
    """Return the audio of a cut's supervision, or of the whole cut."""
    recording = cut.recording
    matching_sources = [source for source in recording.sources if cut.channel in source.channels]
    source = (matching_sources or recording.sources)[0]
    # The channel's index in its file; `pair` compares it with the number of channels.
    index = source.channels.index(cut.channel) if matching_sources else cut.channel
    name = str(locate(path.absolute().parent, map_path(source.source, path_map)))
    # Times of the supervision count from the start of its cut, and are trimmed to the cut.
    fault = None
    begin, end = 0.0, cut.duration
    if supervision is not None:
        begin, end = max(0.0, supervision.start), min(end, supervision.end)
        if supervision.duration - (end - begin) > TRIMMED:
            detail = f"{supervision.id}, {supervision.duration:g} s, ends outside its cut {cut.id}"
            fault = ("bad-segment", detail)
    start, end = cut.start + begin, cut.start + end
    whole = start == 0 and abs(end - recording.duration) < 1e-6
    return AudioSegment(
        name,
        start,
        end,
        str(recording.id),
        fault,
        channel=str(index + 1),
        side=str(cut.channel + 1),
        whole=whole,
    )
