"""Exports Kaldi data directories, and validates them like Kaldi's validate_data_dir.sh."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lhotse import MonoCut
from lhotse.utils import fastcopy

from toolkit.corpus.manifest import ManifestError, audio_of, channel_of, speaker_of, text_of
from toolkit.kaldi.data_dir import write_kaldi_dir
from toolkit.kaldi.validate import data_dir_faults
from toolkit.storage.files import write_atomically

RENAMED = "utt_map"
"""Lines of `new-id old-id`, where utterances had to be renamed."""


@dataclass(frozen=True)
class Exported:
    """The result of an export."""

    utterances: int
    speakers: int
    renamed: bool
    """Whether utterance ids were prefixed with their speakers."""
    left_out: tuple[tuple[str, str], ...]
    """(id, reason) of the cuts that Kaldi could not use."""
    notes: tuple[str, ...]


def export_data_dir(cuts: Iterable[MonoCut], folder: Path) -> Exported:
    """Write wav.scp, text, utt2spk, spk2utt, utt2dur and, for parts of recordings, segments.

    Kaldi requires that utterances sorted by id are sorted by speaker too. Where they are not,
    every id is prefixed with its speaker, and `utt_map` lists the old ids. Of files with the same
    recording id all but the first get a number behind it.
    Cuts with a fault, without audio or without words are left out, and those whose audio a line of
    wav.scp cannot name: parts of several files, changes of speed and the like.

    Args:
      cuts: in any order.
      folder: the data directory.

    Raises:
      ManifestError: nothing to write, two cuts of the same id, or a directory that Kaldi would
        refuse; the message has the reasons.
    """
    kept: list[MonoCut] = []
    left_out = []
    for cut in cuts:
        why = _unusable(cut)
        if why:
            left_out.append((cut.id, why))
        else:
            kept.append(cut)
    if not kept:
        detail = f", first {left_out[0][0]}: {left_out[0][1]}" if left_out else ""
        raise ManifestError(f"there is no utterance to write to {folder}{detail}")
    renamed = not _in_speakers_order(kept)
    written = [_with_speaker(cut) for cut in kept] if renamed else kept
    if not _in_speakers_order(written):
        raise ManifestError(
            "the speakers' names cannot be put in Kaldi's order: one is the beginning of another "
            f"({_first_out_of_order(written)}); rename one of them"
        )
    written = _with_a_file_each(written)
    folder = Path(folder)
    write_kaldi_dir(written, folder)
    _write_lines(folder / "utt2dur", [f"{c.id} {c.duration:.10g}" for c in written])
    recordings = {c.recording_id: f"{c.recording_id} {c.recording.duration:.10g}" for c in written}
    _write_lines(folder / "reco2dur", recordings.values())
    (folder / RENAMED).unlink(missing_ok=True)
    if renamed:
        both = zip(written, kept, strict=True)
        _write_lines(folder / RENAMED, [f"{new.id} {old.id}" for new, old in both])
    faults = data_dir_faults(folder)
    if faults:
        raise ManifestError(f"Kaldi would refuse {folder}: {'; '.join(faults)}")
    return Exported(
        utterances=len(written),
        speakers=len({speaker_of(cut) for cut in written}),
        renamed=renamed,
        left_out=tuple(left_out),
        notes=tuple(_notes(written)),
    )


def _unusable(cut: MonoCut) -> str:
    """Return why Kaldi could not use a cut; empty if it can."""
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
        return "its audio is changed when it is read, such as in speed: write it to a file"
    return ""


def _in_speakers_order(cuts: Sequence[MonoCut]) -> bool:
    """Whether `sort` and `sort -k2` of utt2spk are the same in the C locale."""
    lines = [(cut.id.encode(), speaker_of(cut).encode()) for cut in cuts]
    return sorted(lines) == sorted(lines, key=lambda line: (line[1], line[0]))


def _first_out_of_order(cuts: Sequence[MonoCut]) -> str:
    lines = [(cut.id.encode(), speaker_of(cut)) for cut in cuts]
    by_speaker = sorted(lines, key=lambda line: (line[1].encode(), line[0]))
    pairs = zip(sorted(lines), by_speaker, strict=True)
    return " and ".join(next((a[1], b[1]) for a, b in pairs if a != b))


def _with_speaker(cut: MonoCut) -> MonoCut:
    """Prefix a cut's id with its speaker, and the recording's id too where it was the same."""
    name = f"{speaker_of(cut)}-{cut.id}"
    recording = cut.recording
    if recording.id == cut.id:
        recording = fastcopy(recording, id=name)
    return fastcopy(cut, id=name, recording=recording)


def _with_a_file_each(cuts: Sequence[MonoCut]) -> list[MonoCut]:
    """Give recordings that share an id, but not the file and channel, ids of their own."""
    taken = {cut.recording_id for cut in cuts}
    names: dict[tuple[str, tuple[str, int | None]], str] = {}
    first: dict[str, tuple[str, int | None]] = {}
    for cut in sorted(cuts, key=lambda cut: cut.id.encode()):
        id, file = cut.recording_id, (audio_of(cut), channel_of(cut))
        if first.setdefault(id, file) != file and (id, file) not in names:
            numbered = (f"{id}-{number}" for number in itertools.count(2))
            names[id, file] = next(name for name in numbered if name not in taken)
            taken.add(names[id, file])
    found = []
    for cut in cuts:
        name = names.get((cut.recording_id, (audio_of(cut), channel_of(cut))))
        found.append(fastcopy(cut, recording=fastcopy(cut.recording, id=name)) if name else cut)
    return found


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    ordered = sorted(lines, key=lambda line: line.split(" ", 1)[0].encode())
    write_atomically(path, "".join(f"{line}\n" for line in ordered))


def _notes(cuts: Sequence[MonoCut]) -> list[str]:
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
            f"{audio_of(many[0])}: Kaldi takes one of them, this toolkit their mean"
        )
    formats = {Path(audio_of(cut)).suffix.lower() for cut in cuts} - {".wav", ".flac", ".sph"}
    if formats:
        notes.append(f"Kaldi does not read {', '.join(sorted(formats))} files: convert them to wav")
    return notes
