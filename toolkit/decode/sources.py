"""Inputs of transcription: files, folders, Kaldi's wav.scp, cuts and standard input."""

import json
import logging
import os
import shutil
import tempfile
from codecs import BOM_UTF8
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from torch import Tensor

from toolkit.align.inputs import audio_files, read_speakers
from toolkit.corpus.audio import begins_as_audio, count_channels
from toolkit.decode.decoded import Transcript
from toolkit.errors import ToolkitError
from toolkit.features.audio import AudioError, audio_blocks, pcm_blocks
from toolkit.storage.paths import first_clash, places_of, safe_name
from toolkit.storage.reading import regular, validated

if TYPE_CHECKING:
    from toolkit.corpus.pairing import AudioSegment
    from toolkit.decode.bundle import Role

Blocks = Callable[[int, float], Iterator[Tensor]]
"""(sampling rate in Hz, seconds) -> samples [S] in blocks of at most this many seconds."""

Ids = Literal["stem", "relative", "path"]
"""How files are named in results: by file name without suffix, by path relative to the given folder
without suffix, or by the path as given."""

LONGEST = 4096
"""Maximum length in bytes of a path in a list: Linux's PATH_MAX."""
TABLES = (".csv", ".tsv")
_AS_CUTS = "run `toolkit kaldi import-data {} --out data.jsonl`, and transcribe data.jsonl"
_WAYS_OUT: dict[Ids, str] = {
    "stem": "name files by their paths with --ids relative, below a folder, or --ids path",
    "relative": "name files by their paths with --ids path",
}

logger = logging.getLogger(__name__)


class SourceError(ToolkitError):
    """Raised for an input that contains nothing to transcribe."""


@dataclass(frozen=True)
class Source:
    """A recording to transcribe."""

    name: str
    """Id in results: the id in wav.scp or of the cut; for a file, see `Inputs.ids`."""
    key: str
    """Path of the result below the output folder, without suffix, see `safe_name`."""
    blocks: Blocks
    """Reads the audio; raises AudioError when it is broken."""
    speaker: str | None = None
    """The speaker, if known."""
    origin: str = ""
    """Name in messages: the path as it was given; if empty, `name` is used."""
    channel: str = "1"
    """Channel in CTM files: as the list or the cut names it, or else a number from 1."""

    @property
    def called(self) -> str:
        """The name of the recording in messages."""
        return self.origin or self.name

    def failed(self, error: ToolkitError) -> Transcript:
        """Return a transcript that says why the recording cannot be read."""
        named = isinstance(error, AudioError)
        return Transcript(
            self.name, self.key, fault=str(error) if named else f"{self.called}: {error}"
        )


def by_speaker(sources: Sequence[Source]) -> list[list[int]]:
    """Group the positions of recordings by speaker; one without a speaker is a group by itself."""
    groups: dict[Hashable, list[int]] = {}
    for number, source in enumerate(sources):
        groups.setdefault(number if source.speaker is None else source.speaker, []).append(number)
    return list(groups.values())


def role_of(sources: Sequence[Source]) -> "Role":
    """Return the role of the system to use, which depends on whether any speaker is named."""
    named = any(source.speaker is not None for source in sources)
    return "speaker_known" if named else "speaker_unknown"


@dataclass(frozen=True)
class Inputs:
    """Options for reading inputs."""

    channel: int | None = None
    """The channel to use, from 0; None takes the mean of all channels."""
    allow_pipes: bool = False
    """Run the shell commands in wav.scp files."""
    raw_rate: int | None = None
    """Sampling rate in Hz of raw 16-bit samples on standard input; None: standard input is an audio
    file or a list of paths."""
    speakers: Path | None = None
    """A file of lines `recording speaker`, such as Kaldi's utt2spk; a recording is named by its id,
    its path, or its file's name without suffix. Recordings that the file lacks have the speaker of
    their cut, or none."""
    ids: Ids = "stem"
    """How files get their ids; recordings in wav.scp and cuts have ids of their own."""

    def sources(
        self, arguments: Sequence[str], stdin: BinaryIO | None, folder: Path
    ) -> list[Source]:
        """List the recordings that the arguments name, in order.

        Args:
          arguments: files; folders, searched at any depth for audio suffixes; wav.scp files
            (*.scp); lhotse's cuts (*.jsonl, *.json, gzipped too); `-` for standard input.
          stdin: standard input; None: it is closed.
          folder: a folder for the audio from commands and standard input; it must exist until all
            recordings have been read.

        Raises:
          SourceError: an input has no recordings, or the file of speakers names none of them.
          InputError: the file of speakers cannot be read.
        """
        sources = [source for name in arguments for source in self._sources(name, stdin, folder)]
        if self.speakers is None:
            return sources
        speaker_of = read_speakers(self.speakers)
        named = [
            next((speaker_of[name] for name in _names(source) if name in speaker_of), None)
            for source in sources
        ]
        if not any(named):
            raise SourceError(
                f"{self.speakers} lists none of the recordings, such as {sources[0].called}"
            )
        return [replace(s, speaker=n or s.speaker) for s, n in zip(sources, named, strict=True)]

    def _sources(self, name: str, stdin: BinaryIO | None, folder: Path) -> list[Source]:
        """List the recordings of one argument."""
        path = Path(name)
        if name == "-":
            if stdin is None:
                raise SourceError("standard input is closed")
            return self._stdin(stdin, folder)
        if path.is_dir():
            return self._folder(path)
        if path.suffix == ".scp":
            return self._scp(path, folder)
        if path.name.endswith((".jsonl", ".jsonl.gz", ".json", ".json.gz")):
            return self._cuts(path)
        if path.suffix.lower() in TABLES:
            raise SourceError(
                f"{path} is a table, not audio: give the manifest that a recipe made from it, "
                "such as exp/base/data/test.jsonl, or the audio files"
            )
        return [self._file(path, path.stem)]

    def _file(self, path: Path, key: str, name: str | None = None) -> Source:
        """Return a recording in an audio file."""
        blocks = partial(audio_blocks, path, channel=self.channel)
        channel = str((self.channel or 0) + 1)
        if name is None:
            name = {"stem": path.stem, "relative": key, "path": str(path)}[self.ids]
            return Source(_as_id(name), safe_name(key), blocks, origin=str(path), channel=channel)
        return Source(name, safe_name(key), blocks, channel=channel)

    def _folder(self, folder: Path) -> list[Source]:
        """List the recordings in a folder."""
        paths, other_files = audio_files(folder)
        if not paths and (folder / "wav.scp").is_file():
            raise SourceError(f"{folder} is a Kaldi data directory: {_AS_CUTS.format(folder)}")
        if other_files := [path for path in other_files if _may_be_audio(path)]:
            logger.warning(
                "%s: left out %d files that may be audio, such as %s. To transcribe such a file, "
                "give its path. If the toolkit cannot read it, convert it, for example to WAV",
                *(folder, len(other_files), other_files[0]),
            )
        if not paths:
            raise SourceError(f"{folder}: no audio file in this folder or below it")
        return [self._file(path, str(path.relative_to(folder).with_suffix(""))) for path in paths]

    def _scp(self, path: Path, folder: Path) -> list[Source]:
        """List the recordings of a wav.scp."""
        from toolkit.corpus.pairing import named_channels
        from toolkit.corpus.wav_scp import PipeRunner, read_scp

        sources = []
        recordings = read_scp(path, PipeRunner(folder) if self.allow_pipes else None)
        named = named_channels(audio for _, audio in recordings)
        for id, audio in recordings:
            if audio.fault is None:
                source = self._file(Path(audio.path), id, id)
                if channel := audio.side or audio.channel:
                    file_channels = frozenset(named[audio.path])
                    blocks = partial(_channel_blocks, id, audio, file_channels, self.channel)
                    source = replace(source, blocks=blocks, channel=channel)
                sources.append(source)
                continue
            kind, detail = audio.fault
            if kind == "refused-pipe":
                detail += " (shell commands are run only with --allow-pipes)"
            sources.append(Source(id, safe_name(id), partial(_broken, f"{id}: {detail}")))
        if not sources:
            raise SourceError(f"{path} lists no recordings")
        if (path.parent / "segments").exists():
            logger.warning(
                "%s: transcribing whole recordings, not the segments in the same folder. To "
                "transcribe the segments: %s",
                *(path, _AS_CUTS.format(path.parent)),
            )
        return sources

    def _cuts(self, path: Path) -> list[Source]:
        """List the recordings of a manifest of cuts."""
        from lhotse import MonoCut

        from toolkit.corpus.manifest import UnsafeCutError, channel_name, parse_cut
        from toolkit.storage.reading import reading

        sources, places = [], places_of(path)
        for place, fields in _manifest_items(path):
            with reading(place, SourceError, "write the cuts again", "not a cut"):
                channel = str((self.channel or 0) + 1)
                try:
                    cut = parse_cut(fields, place, places)
                    blocks = partial(_cut_blocks, cut, self)
                    if self.channel is None and isinstance(cut, MonoCut):
                        channel = channel_name(cut)
                except UnsafeCutError as error:
                    blocks = partial(_broken, str(error))
                if fault := _without_channel(fields):
                    blocks = partial(_broken, fault)
                id, speaker = fields["id"], _speaker(fields)
                sources.append(Source(id, safe_name(id), blocks, speaker, channel=channel))
        if not sources:
            raise SourceError(f"{path} contains no cuts")
        return sources

    def _stdin(self, stdin: BinaryIO, folder: Path) -> list[Source]:
        """List the recordings on standard input: raw audio, an audio file or a list of paths."""
        if self.raw_rate is not None:
            return [Source("-", "stdin", partial(pcm_blocks, stdin, self.raw_rate))]
        head = stdin.read(12)
        if begins_as_audio(head):
            with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
                file.write(head)
                shutil.copyfileobj(stdin, file)
            blocks = partial(
                audio_blocks, Path(file.name), channel=self.channel, called="standard input"
            )
            return [Source("-", safe_name("stdin"), blocks)]
        lines = (head + stdin.read()).removeprefix(BOM_UTF8).splitlines()
        if any(b"\0" in line or len(line) > LONGEST for line in lines):
            raise SourceError(
                "standard input is neither a list of paths nor an audio file; for raw samples give"
                " their sampling rate with --raw-rate"
            )
        paths = [Path(os.fsdecode(line.strip())) for line in lines if line.strip()]
        if not paths:
            raise SourceError("standard input is empty: expected a list of paths or an audio file")
        return [self._file(path, path.stem) for path in paths]


def check_ids(sources: Sequence[Source], ids: Ids) -> None:
    """Check that all recordings have different ids, as scoring programs need.

    Args:
      sources: the recordings.
      ids: how files get their ids, see `Inputs.ids`.

    Raises:
      SourceError: two recordings have the same id.
    """
    first: dict[str, Source] = {}
    for source in sources:
        earlier = first.setdefault(source.name, source)
        if earlier is not source:
            raise SourceError(
                f"{earlier.called} and {source.called} have the same id {source.name}: "
                + _way_out(earlier, source, ids)
            )


def _way_out(first: Source, second: Source, ids: Ids) -> str:
    """Return advice on giving two recordings with the same id different ids."""
    if first.origin and os.path.abspath(first.origin) == os.path.abspath(second.origin):
        return "both are the same file: give it only once"
    if ids in _WAYS_OUT and second.origin and _as_id(first.called) != _as_id(second.origin):
        return _WAYS_OUT[ids]
    return "rename one of them, or transcribe them in separate calls"


def _as_id(name: str) -> str:
    """Replace white space by `_`, since an id ends at white space in text files."""
    return "_".join(name.split())


def check_keys(sources: Sequence[Source], suffix: str) -> None:
    """Check that the results of all recordings can be files in one folder.

    Args:
      sources: the recordings.
      suffix: the suffix of the result files.

    Raises:
      SourceError: two recordings have the same key, or one result's file would have to be the
        folder of another result.
    """
    if clash := first_clash(f"{source.key}{suffix}" for source in sources):
        first, second = (sources[position] for position in clash)
        raise SourceError(
            f"the results of {first.called} and {second.called} would both be written to "
            f"{first.key}{suffix}: transcribe them in separate calls"
        )


def _may_be_audio(path: Path) -> bool:
    """Whether a file in a folder is audio despite an unusual suffix."""
    try:
        with regular(path).open("rb") as file:
            return begins_as_audio(file.read(12))
    except OSError:
        return False


def _names(source: Source) -> tuple[str, ...]:
    """Return the names by which a speakers file may refer to a recording."""
    path = source.called
    return source.name, path, Path(path).stem


def _cut_blocks(cut: Any, inputs: Inputs, rate: int, seconds: float) -> Iterator[Tensor]:
    """Yield a cut's samples: block by block from a plain file, otherwise in one block."""
    from toolkit.features.cut_audio import load_cut_audio, plain_file

    file = plain_file(cut)
    if file is None:
        yield load_cut_audio(cut, rate)
        return
    channel = file.channel if inputs.channel is None else inputs.channel
    yield from audio_blocks(file.path, rate, seconds, cut.start, cut.duration, channel)


def _channel_blocks(
    id: str,
    audio: "AudioSegment",
    named: frozenset[str],
    option: int | None,
    rate: int,
    seconds: float,
) -> Iterator[Tensor]:
    """Yield the samples of the channel that wav.scp or reco2file_and_channel names.

    Args:
      named: all channels of this file that wav.scp names.
      option: the value of --channel, from 0; it must be the recording's channel.
    """
    from toolkit.corpus.pairing import choose_channel

    path = Path(audio.path)
    num_channels = count_channels(path)
    channel, fault = choose_channel(audio, num_channels, named) if num_channels else (None, "")
    if fault:
        raise AudioError(f"{id}: {fault} in {path}")
    if channel is not None and option not in (None, channel):
        raise AudioError(
            f"{id} is channel {audio.side or audio.channel} of {num_channels} in {path}: give "
            f"--channel {channel + 1}, or leave out --channel"
        )
    yield from audio_blocks(path, rate, seconds, channel=channel)


def _manifest_items(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the place and plain data of each cut, from JSON lines or from an array (.json)."""
    from toolkit.corpus.cut_files import manifest_items
    from toolkit.storage.lines import read_lines
    from toolkit.storage.reading import reading

    if path.name.endswith((".json", ".json.gz")):
        yield from manifest_items(path)
        return
    for number, line in read_lines(path, SourceError):
        place = f"{path}:{number}"
        with reading(place, SourceError, "write the cuts again", "not a cut"):
            item = json.loads(line)
        yield place, item


def _without_channel(cut: Any) -> str:
    """Return why a cut cannot be read if the toolkit marked its channel as missing, else ""."""
    from toolkit.corpus.pairing import NO_CHANNEL

    custom = validated(cut, {str: Any}).get("custom")
    if not isinstance(custom, dict) or custom.get("fault") != NO_CHANNEL:
        return ""
    return f"{cut['id']}: {custom.get('fault_detail', NO_CHANNEL)}"


def _speaker(cut: Any) -> str | None:
    """Return the speaker of a cut's supervisions if they name exactly one."""
    supervisions = validated(cut, {str: Any}).get("supervisions") or []
    speakers = {supervision.get("speaker") for supervision in validated(supervisions, [{str: Any}])}
    (speaker,) = speakers if len(speakers) == 1 else (None,)
    return speaker if isinstance(speaker, str) else None


def _broken(fault: str, rate: int, seconds: float) -> Iterator[Tensor]:
    """Return a generator that raises the fault when it is read."""
    raise AudioError(fault)
    yield  # a generator, which fails when it is read
