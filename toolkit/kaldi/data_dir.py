"""Reads and writes Kaldi data directories; exports cuts with ids in the order that Kaldi needs."""

import dataclasses
import itertools
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lhotse import MonoCut
from lhotse.utils import fastcopy

from toolkit.corpus.manifest import (
    CHANNEL_NAME,
    ManifestError,
    audio_of,
    channel_name,
    channel_of,
    flag_ambiguous_speaker,
    flag_missing_speaker,
    has_audio,
    speaker_of,
    text_of,
)
from toolkit.corpus.pairing import (
    OTHER_CHANNEL,
    AudioSegment,
    FaultyText,
    channel_index,
    from_one,
    pair,
)
from toolkit.corpus.wav_scp import RunPipe, faulty_audio, read_lines, read_pairs, read_scp
from toolkit.kaldi.validate import data_dir_faults
from toolkit.storage.files import write_atomically
from toolkit.storage.paths import PathMap


def read_kaldi_dir(
    folder: Path, run_pipe: RunPipe | None = None, path_map: PathMap = ()
) -> list[MonoCut]:
    """Read a data directory: wav.scp, text, and optionally segments, utt2spk and others.

    - A path in wav.scp is mapped by `path_map`; a relative path is looked up in `folder` and in
      each folder above it.
    - Lines that are not UTF-8 are faults of their utterances.
    - `flac -c -d -s FILE |` and `sph2pipe -f wav -p FILE |` are read as FILE; with `-c 2`, and for
      `sox FILE -t wav - remix 2 |`, only its second channel is read. Any other command is passed
      to `run_pipe` (see `toolkit.corpus.wav_scp.PipeRunner`); if `run_pipe` is None, the command is
      a fault of its utterances.
    - Lines may be in any order.
    - reco2file_and_channel (A and B or 1 and 2) or a fifth column of segments names the channel in
      a file of several. Numbers in segments count from 0, as in extract-segments; they count from 1
      if none is 0 and one is above 1. If no channel is named, all are averaged.
    - A segment's end of -1 is the end of the recording.
    - Without a speaker in utt2spk, the recording of an utterance is its speaker, and the check
      warns. If utt2spk names two speakers, the first one is used, and the check warns.

    Returns:
      Cuts; faults are recorded in them for the check to report.

    Raises:
      ManifestError: there is no wav.scp or no text.
    """
    for name in ("wav.scp", "text"):
        if not (folder / name).is_file():
            raise ManifestError(f"{folder} is not a Kaldi data directory: it has no file {name!r}")
    recordings = read_scp(folder / "wav.scp", run_pipe, path_map)
    audio: Iterable[tuple[str, AudioSegment]] = recordings
    if (folder / "segments").is_file():
        audio = _segments(folder / "segments", _by_id(recordings))
    return pair_with_text(folder, audio)


def pair_with_text(
    folder: Path,
    audio: Iterable[tuple[str, AudioSegment]],
    recordings: Mapping[str, str] | None = None,
) -> list[MonoCut]:
    """Make cuts from utterances' audio or features and a folder's `text` and `utt2spk`.

    Args:
      folder: a data directory.
      audio: (utterance id, audio or features), in any order.
      recordings: recording id by utterance, for audio that does not name its recording. It becomes
        the speaker if `utt2spk` names none.
    """
    has_speakers = (folder / "utt2spk").is_file()
    speakers, other_speakers = _read_speakers(folder / "utt2spk") if has_speakers else ({}, {})
    texts = [
        (line.id, FaultyText(line.fault) if line.fault else line.value)
        for line in read_lines(folder / "text")
    ]
    cuts = pair(texts, audio, lambda id, path: speakers.get(id, id), str(folder / "text"))
    detail = f"not in {folder / 'utt2spk'}" if has_speakers else f"{folder} has no utt2spk"
    for cut in cuts:
        if cut.id not in speakers:
            flag_missing_speaker(cut, detail, (recordings or {}).get(cut.id))
        if cut.id in other_speakers:
            flag_ambiguous_speaker(cut, other_speakers[cut.id])
    return cuts


def _read_speakers(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Read utt2spk: each utterance's first speaker, and a note if there is a second one."""
    speakers: dict[str, str] = {}
    other_speakers: dict[str, str] = {}
    for id, speaker in read_pairs(path):
        if speaker and speakers.setdefault(id, speaker) != speaker:
            other_speakers.setdefault(id, f"{path}: {speakers[id]}, not {speaker}")
    return speakers, other_speakers


def _by_id(recordings: list[tuple[str, AudioSegment]]) -> dict[str, AudioSegment]:
    """Keep the first recording of each id, with a note about further ones."""
    table: dict[str, AudioSegment] = {}
    for id, item in recordings:
        if id in table:
            note = ("duplicate-recording", f"wav.scp: {id}: {table[id].path}, not {item.path}")
            item = dataclasses.replace(table[id], note=note)
        table[id] = item
    return table


def _segments(path: Path, recordings: dict[str, AudioSegment]) -> list[tuple[str, AudioSegment]]:
    """Read segments: lines `utterance recording start end [channel]`."""
    lines = read_lines(path)
    rows = [line.value.split() for line in lines]
    numbers = [int(row[3]) for row in rows if len(row) > 3 and _is_number(row[3])]
    # Channels count from 1 if none is 0 and one is above 1, else from 0 as in extract-segments.
    first = 1 if numbers and min(numbers) > 0 and max(numbers) > 1 else 0
    return [
        (line.id, faulty_audio(line) if line.fault else _segment(row, recordings, first))
        for line, row in zip(lines, rows, strict=True)
    ]


def _is_number(channel: str) -> bool:
    """Whether a channel name is a number of at most four ASCII digits."""
    return channel.isdecimal() and channel.isascii() and len(channel) < 5


def _segment(row: list[str], recordings: dict[str, AudioSegment], first: int) -> AudioSegment:
    """Parse `recording start end [channel]`; channel numbers count from `first`."""
    name, *numbers = row or [""]
    if name not in recordings:
        return AudioSegment(
            name, fault=("missing-audio", f"segments: no recording {name!r} in wav.scp")
        )
    whole = recordings[name]
    try:
        start, end = (float(number) for number in numbers[:2])
        if not (math.isfinite(start) and math.isfinite(end)) or len(numbers) > 3:
            raise ValueError
    except ValueError:
        fault = whole.fault or (
            "bad-segment",
            f"segments: not `recording start end [channel]`: {' '.join(row)!r}",
        )
        return AudioSegment(whole.path, recording_id=name, fault=fault)
    # Channel -1 is the only channel. The first channel may also be the only one: in the output of a
    # command that takes one channel, or in a file of one side.
    named = from_one(numbers[2], first) if len(numbers) > 2 and numbers[2] != "-1" else None
    expected, note = whole.channel or whole.side, whole.note
    if named and expected and channel_index(named) not in (0, channel_index(expected)):
        detail = f"{name}: segments names channel {numbers[2]}, but other files name {expected}"
        note = (OTHER_CHANNEL, detail)
    channel = whole.channel or named
    return AudioSegment(whole.path, start, end, name, whole.fault, note, channel, whole.side)


def write_kaldi_dir(cuts: Iterable[MonoCut], folder: Path) -> None:
    """Write a data directory: wav.scp, text, utt2spk, spk2utt, and segments if needed.

    If a cut is one channel of a file with several, or its channel has a name,
    reco2file_and_channel is written too, with A for the first channel and B for the second. For one
    channel of several, wav.scp has a command that extracts it (sph2pipe -c, sox).

    If all cuts are whole recordings, the segments of an earlier export are removed. All files are
    sorted by bytes, as Kaldi's tools require. FLAC and SPHERE files are written as the commands by
    which Kaldi reads them (flac, sph2pipe).

    Raises:
      ManifestError: two cuts have the same id, a recording id has two files, an id contains white
        space, an audio file has a name that Kaldi would run, or a cut has features and no audio.
    """
    # 1. Check what Kaldi's files cannot represent.
    cuts = sorted(cuts, key=lambda cut: cut.id.encode())
    for cut in cuts:
        if not has_audio(cut):
            raise ManifestError(
                f"{cut.id} has Kaldi features and no audio, so it cannot be written: use the "
                "original Kaldi data directory"
            )
    for cut, next_cut in itertools.pairwise(cuts):
        if cut.id == next_cut.id:
            raise ManifestError(
                f"the utterance id {cut.id!r} occurs twice: remove one of the two utterances"
            )
    whole = all(
        cut.recording_id == cut.id
        and cut.start == 0
        and abs(cut.duration - cut.recording.duration) < 1e-6
        for cut in cuts
    )
    sources: dict[str, str] = {}
    for cut in cuts:
        source = _source(audio_of(cut), cut.id, _channel_of_several(cut))
        if sources.setdefault(cut.recording_id, source) != source:
            raise ManifestError(
                f"two files or channels have the recording id {cut.recording_id!r}; one of them "
                f"is {audio_of(cut)}: give each its own id"
            )
    utterances: dict[str, list[str]] = {}
    for cut in cuts:
        utterances.setdefault(speaker_of(cut), []).append(cut.id)
    for name in [*sources, *utterances, *(c.id for c in cuts)]:
        if len(name.split()) != 1:
            raise ManifestError(
                f"the utterance, recording or speaker {name!r} needs another id, because ids in "
                "Kaldi must not be empty or contain white space: rename it"
            )
    # 2. Write the tables.
    tables = {
        "wav.scp": sources,
        "text": {cut.id: text_of(cut) for cut in cuts},
        "utt2spk": {cut.id: speaker_of(cut) for cut in cuts},
        "spk2utt": {speaker: " ".join(ids) for speaker, ids in utterances.items()},
    }
    if whole:
        (folder / "segments").unlink(missing_ok=True)
    else:
        tables["segments"] = {
            cut.id: f"{cut.recording_id} {cut.start:.4f} {cut.end:.4f}" for cut in cuts
        }
    (folder / "reco2file_and_channel").unlink(missing_ok=True)
    if any(CHANNEL_NAME in (cut.custom or {}) or _channel_of_several(cut) for cut in cuts):
        tables["reco2file_and_channel"] = {
            cut.recording_id: f"{_file_id(cut)} {_side(cut)}" for cut in cuts
        }
    for name, table in tables.items():
        lines = (f"{key} {table[key]}".rstrip() for key in sorted(table, key=str.encode))
        write_atomically(folder / name, "".join(f"{line}\n" for line in lines))


def _channel_of_several(cut: MonoCut) -> int | None:
    """Return a cut's channel, from 1, if its file has several channels; else None."""
    channel = channel_of(cut)
    return None if channel is None or cut.recording.num_channels == 1 else channel + 1


def _side(cut: MonoCut) -> str:
    """Return the side of a cut, A or B."""
    return "B" if channel_index(channel_name(cut)) == 1 else "A"


def _file_id(cut: MonoCut) -> str:
    """Return the id of a cut's file, shared by the recordings of its channels."""
    if _channel_of_several(cut) is None:
        return cut.recording_id
    return "_".join(Path(audio_of(cut)).stem.split())


def _source(path: str, id: str, channel: int | None) -> str:
    """Return the wav.scp entry of a recording: its file or a command."""
    if path.rstrip().endswith("|") or len(path.splitlines()) > 1:
        raise ManifestError(
            f"{id}: Kaldi would run the name of its audio file, {path!r}, as a command: rename the"
            " file"
        )
    quoted, suffix = shlex.quote(path), Path(path).suffix.lower()
    if suffix == ".sph":
        side = "" if channel is None else f"-c {channel} "
        return f"sph2pipe -f wav -p {side}{quoted} |"
    if channel is not None:
        return f"sox {quoted} -t wav - remix {channel} |"
    return f"flac -c -d -s {quoted} |" if suffix == ".flac" else path


RENAMED = "utt_map"
"""File with lines of `new-id old-id`, if utterances had to be renamed."""


@dataclass(frozen=True)
class DataDirSummary:
    """Counts and notes about an exported data directory."""

    utterances: int
    speakers: int
    renamed: bool
    """Whether utterance ids were prefixed with their speakers."""
    left_out: tuple[tuple[str, str], ...]
    """(id, reason) of the cuts that Kaldi could not use."""
    notes: tuple[str, ...]


def export_data_dir(cuts: Iterable[MonoCut], folder: Path) -> DataDirSummary:
    """Write a data directory with utt2dur and, for parts of recordings, segments.

    Kaldi requires that utterances sorted by id are also sorted by speaker. If they are not, every
    id is prefixed with its speaker, and `utt_map` lists the old ids. If several files have the same
    recording id, a number is appended to the id of all but the first. Cuts with a fault, without
    audio or without words are left out. So are cuts whose audio a line of wav.scp cannot name,
    because it is in several files or is changed in speed, for example.

    Args:
      cuts: in any order.
      folder: the data directory.

    Raises:
      ManifestError: there is nothing to write, two cuts have the same id, or Kaldi would refuse the
        directory; the message has the reasons.
    """
    # 1. Leave out what Kaldi cannot use.
    usable: list[MonoCut] = []
    left_out = []
    for cut in cuts:
        reason = _unusable(cut)
        if reason:
            left_out.append((cut.id, reason))
        else:
            usable.append(cut)
    if not usable:
        detail = f". The first is {left_out[0][0]}: {left_out[0][1]}" if left_out else ""
        raise ManifestError(f"no utterance can be written to {folder}{detail}")
    # 2. Rename until utterances are sorted by speaker, and recordings have a file each.
    renamed = not _in_speakers_order(usable)
    ordered = [_with_speaker(cut) for cut in usable] if renamed else usable
    if not _in_speakers_order(ordered):
        raise ManifestError(
            "the speakers cannot be sorted as Kaldi requires, because the name of one is a prefix "
            f"of another's name ({_first_out_of_order(ordered)}): rename one of them"
        )
    ordered = _with_a_file_each(ordered)
    # 3. Write the directory, and check it as Kaldi would.
    folder = Path(folder)
    write_kaldi_dir(ordered, folder)
    _write_lines(folder / "utt2dur", [f"{c.id} {c.duration:.10g}" for c in ordered])
    recordings = {c.recording_id: f"{c.recording_id} {c.recording.duration:.10g}" for c in ordered}
    _write_lines(folder / "reco2dur", recordings.values())
    (folder / RENAMED).unlink(missing_ok=True)
    if renamed:
        id_pairs = zip(ordered, usable, strict=True)
        _write_lines(folder / RENAMED, [f"{new.id} {old.id}" for new, old in id_pairs])
    faults = data_dir_faults(folder)
    if faults:
        raise ManifestError(f"Kaldi would refuse {folder}: {'; '.join(faults)}")
    return DataDirSummary(
        utterances=len(ordered),
        speakers=len({speaker_of(cut) for cut in ordered}),
        renamed=renamed,
        left_out=tuple(left_out),
        notes=tuple(_notes(ordered)),
    )


def _unusable(cut: MonoCut) -> str:
    """Return why Kaldi could not use a cut; "" if it can."""
    if "fault" in (cut.custom or {}):
        return f"{cut.custom['fault']}: {cut.custom.get('fault_detail', '')}"
    if cut.duration <= 0:
        return "no audio"
    if not text_of(cut).split():
        return "no word in its transcript"
    recording = cut.recording
    if recording.sources[0].type != "file":
        return f"its audio is not a file but a {recording.sources[0].type}"
    if len(recording.sources) > 1:
        return f"its recording consists of {len(recording.sources)} files"
    if recording.transforms:
        return "transforms change its audio, such as its speed: write the result to a file"
    return ""


def _in_speakers_order(cuts: Sequence[MonoCut]) -> bool:
    """Whether utt2spk sorts alike by utterance and by speaker (C locale), as Kaldi requires."""
    lines = [(cut.id.encode(), speaker_of(cut).encode()) for cut in cuts]
    return sorted(lines) == sorted(lines, key=lambda line: (line[1], line[0]))


def _first_out_of_order(cuts: Sequence[MonoCut]) -> str:
    """Return the two speakers where the orders by utterance and by speaker first differ."""
    lines = [(cut.id.encode(), speaker_of(cut)) for cut in cuts]
    by_speaker = sorted(lines, key=lambda line: (line[1].encode(), line[0]))
    pairs = zip(sorted(lines), by_speaker, strict=True)
    return " and ".join(next((a[1], b[1]) for a, b in pairs if a != b))


def _with_speaker(cut: MonoCut) -> MonoCut:
    """Prefix a cut's id with its speaker, and the recording's id too if both are equal."""
    name = f"{speaker_of(cut)}-{cut.id}"
    recording = cut.recording
    if recording.id == cut.id:
        recording = fastcopy(recording, id=name)
    return fastcopy(cut, id=name, recording=recording)


def _with_a_file_each(cuts: Sequence[MonoCut]) -> list[MonoCut]:
    """Rename recordings that share an id but differ in file or channel."""
    recording_ids = {cut.recording_id for cut in cuts}
    names: dict[tuple[str, tuple[str, int | None]], str] = {}
    first: dict[str, tuple[str, int | None]] = {}
    for cut in sorted(cuts, key=lambda cut: cut.id.encode()):
        id, file = cut.recording_id, (audio_of(cut), channel_of(cut))
        if first.setdefault(id, file) != file and (id, file) not in names:
            numbered = (f"{id}-{number}" for number in itertools.count(2))
            names[id, file] = next(name for name in numbered if name not in recording_ids)
            recording_ids.add(names[id, file])
    renamed_cuts = []
    for cut in cuts:
        name = names.get((cut.recording_id, (audio_of(cut), channel_of(cut))))
        renamed_cuts.append(
            fastcopy(cut, recording=fastcopy(cut.recording, id=name)) if name else cut
        )
    return renamed_cuts


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines sorted by the bytes of their first word."""
    ordered = sorted(lines, key=lambda line: line.split(" ", 1)[0].encode())
    write_atomically(path, "".join(f"{line}\n" for line in ordered))


def _notes(cuts: Sequence[MonoCut]) -> list[str]:
    """Return notes on properties of the audio that matter to Kaldi."""
    notes = []
    rates = sorted({cut.recording.sampling_rate for cut in cuts})
    if len(rates) > 1:
        notes.append(
            f"sampling rates differ ({', '.join(map(str, rates))} Hz): Kaldi needs "
            "--allow-downsample and --sample-frequency"
        )
    many = [cut for cut in cuts if (cut.custom or {}).get("mix_channels")]
    if many:
        notes.append(
            f"{len(many)} utterances are of recordings with several channels, first "
            f"{audio_of(many[0])}: Kaldi uses one channel, this toolkit the mean of all"
        )
    formats = {Path(audio_of(cut)).suffix.lower() for cut in cuts} - {".wav", ".flac", ".sph"}
    if formats:
        notes.append(f"Kaldi does not read {', '.join(sorted(formats))} files: convert them to wav")
    return notes
