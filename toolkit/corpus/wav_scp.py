"""Reads Kaldi's wav.scp, whose entries may be shell commands, and the tables beside it."""

import dataclasses
import hashlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from toolkit.corpus.audio_headers import is_shortened
from toolkit.corpus.manifest import ManifestError
from toolkit.corpus.pairing import (
    NOT_UTF8,
    OTHER_CHANNEL,
    AudioSegment,
    channel_index,
    count_from_one,
    locate,
)
from toolkit.storage.files import open_atomically
from toolkit.storage.lines import LineCounts, decoded_lines, is_faulty, key_and_rest
from toolkit.storage.paths import PathMap, map_path, printable

PIPE_CLOSED = 141
"""Exit status of a program whose output is no longer read, for example by `head` (SIGPIPE)."""
DECODERS = {
    "flac": {"-c", "-d", "-s", "-cd", "-dc", "-cds", "-dcs", "--decode", "--stdout", "--silent"},
    "sph2pipe": {"-p"},
}
"""Programs that decode a file, with the options that do not change the samples."""

RunPipe = Callable[[str, str], AudioSegment]
"""Called as run_pipe(recording id, shell command); returns the audio that the command writes."""


def read_scp(
    path: Path, run_pipe: RunPipe | None = None, path_map: PathMap = ()
) -> list[tuple[str, AudioSegment]]:
    """Read a wav.scp: return the recording id and audio of each line.

    Channels come from the file reco2file_and_channel in the same folder, if it exists. Without
    `run_pipe`, a shell command that does more than decode a file is a fault.
    """
    sides = _sides(path.parent / "reco2file_and_channel")
    recordings = [
        (
            line.id,
            faulty_audio(line)
            if line.fault
            else _recording(path, line.id, line.value, run_pipe, path_map),
        )
        for line in read_lines(path)
    ]
    return [(id, _on_side(id, audio, sides.get(id))) for id, audio in recordings]


def _on_side(id: str, audio: AudioSegment, side: str | None) -> AudioSegment:
    """Set the side that reco2file_and_channel names; note if wav.scp takes another channel."""
    note = audio.note
    if side and audio.channel and channel_index(side) != channel_index(audio.channel):
        channels = f"{audio.channel}, but reco2file_and_channel names {side}"
        detail = f"{id}: wav.scp takes channel {channels}"
        note = (OTHER_CHANNEL, detail)
    return dataclasses.replace(audio, side=side, note=note)


def _sides(path: Path) -> dict[str, str | None]:
    """Read reco2file_and_channel: return the channel of each recording."""
    if not path.is_file():
        return {}
    rows = [(id, value.split()) for id, value in read_pairs(path)]
    names = count_from_one(fields[1] if len(fields) > 1 else None for _, fields in rows)
    return {id: name for (id, _), name in zip(rows, names, strict=True)}


@dataclass(frozen=True)
class TableLine:
    """A line of a table in a Kaldi data directory."""

    id: str
    """Its first word."""
    value: str
    """Text after the first white space."""
    fault: str = ""
    """File, line number and bytes of a line that is not UTF-8; empty for other lines."""


def read_lines(path: Path) -> list[TableLine]:
    """Split each non-blank line of a table at its first ASCII white space.

    A byte order mark, which Windows editors put at the beginning, is not part of the first id.
    """
    counts = LineCounts()
    numbered = list(decoded_lines(path, ManifestError, counts))
    lines = []
    for number, line in numbered:
        id, value = key_and_rest(line)
        if is_faulty(line):
            fault = f"{path}:{number}: {counts.describe(line)}"
            lines.append(TableLine(printable(id).replace("\0", "\\x00"), printable(value), fault))
        elif id:
            lines.append(TableLine(id, value))
    return lines


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """Read the lines of a table as (id, value) pairs, without those that are not UTF-8."""
    return [(line.id, line.value) for line in read_lines(path) if not line.fault]


def faulty_audio(line: TableLine) -> AudioSegment:
    """Return a placeholder, with a fault, for the audio of a line that is not UTF-8."""
    return AudioSegment(line.id, recording_id=line.id, fault=(NOT_UTF8, line.fault))


def _recording(
    scp: Path, id: str, source: str, run_pipe: RunPipe | None, path_map: PathMap
) -> AudioSegment:
    """Return the audio that a line of wav.scp names."""
    # Three cases: a file; a command that only decodes a file, so the file is read instead; and any
    # other command.
    folder = scp.parent
    if not source:
        return AudioSegment(id, fault=("missing-audio", f"{scp} names no file for {id}"))
    if not source.endswith("|"):
        return AudioSegment(str(locate(folder, map_path(source, path_map))), recording_id=id)
    decoded = _decoded_file(source)
    if decoded is not None:
        name, channel = decoded
        path = str(locate(folder, map_path(name, path_map)))
        if not (run_pipe and is_shortened(path)):
            note = ("replaced-pipe", f"{path} instead of `{source}`")
            return AudioSegment(path, recording_id=id, note=note, channel=channel)
    if run_pipe is not None:
        return run_pipe(id, source[:-1].strip())
    return AudioSegment(source, recording_id=id, fault=("refused-pipe", f"{scp}: {source}"))


def _decoded_file(command: str) -> tuple[str, str | None] | None:
    """Return the file and channel of a command that only decodes a file; None for other commands.

    Such commands are those of flac, sph2pipe and sox with certain options.
    """
    # A command with shell syntax may do more than decode.
    if any(letter in command[:-1] for letter in "|&;<>$`()\n"):
        return None
    try:
        path, *arguments = shlex.split(command[:-1])
    except ValueError:
        return None
    program, channel = os.path.basename(path), None
    # `sox FILE -t wav - remix CHANNEL`
    if program == "sox":
        *arguments, effect, channel = arguments if len(arguments) == 6 else [*arguments, "", ""]
        picks_channel = (
            arguments[1:] == ["-t", "wav", "-"] and effect == "remix" and channel.isdecimal()
        )
        return (
            (arguments[0], channel) if picks_channel and not arguments[0].startswith("-") else None
        )
    # `sph2pipe -f wav -p -c CHANNEL FILE`, the options in any order
    while program == "sph2pipe" and len(arguments) > 2:
        if arguments[:2] == ["-f", "wav"]:
            del arguments[:2]
        elif arguments[0] == "-p":
            del arguments[0]
        elif arguments[0] == "-c" and arguments[1] in ("1", "2"):
            channel = arguments[1]
            del arguments[:2]
        else:
            break
    # Only options that leave the samples unchanged are accepted.
    options = {argument for argument in arguments if argument.startswith("-")}
    files = [argument for argument in arguments if not argument.startswith("-")]
    only_decodes = program in DECODERS and options <= DECODERS[program]
    return (files[0], channel) if only_decodes and len(files) == 1 else None


class PipeRunner:
    """Runs shell commands once each, and keeps their audio output as files in `folder`.

    A command that ends with an error or writes nothing is a fault. With bash, an error of any
    program in a pipeline counts; without bash, only an error of the last program.

    The commands are the user's own and can do anything: use this class only if the configuration
    has `allow_pipes`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, id: str, command: str) -> AudioSegment:
        """Run `command` if it has not run yet; return the audio that it writes to stdout."""
        # One file per command: recordings that share it share the output.
        name = hashlib.sha256(command.encode()).hexdigest()[:20]
        path = self._folder.absolute() / f"{name}.wav"
        if not path.exists() or not path.stat().st_size:
            # With pipefail, a program that fails anywhere in the pipeline fails the command.
            bash = shutil.which("bash")
            shell = [bash, "-o", "pipefail", "-c"] if bash else ["/bin/sh", "-c"]
            process = subprocess.run([*shell, command], capture_output=True, check=False)
            if process.returncode not in (0, PIPE_CLOSED) or not process.stdout:
                last_line = process.stderr.decode(errors="replace").strip().splitlines()[-1:]
                problem = f"ended with status {process.returncode}"
                problem = problem if process.returncode else "wrote nothing"
                detail = f"`{command}` {problem}: {' '.join(last_line)}".removesuffix(": ")
                return AudioSegment(command, recording_id=id, fault=("unreadable-audio", detail))
            with open_atomically(path, "wb") as file:
                file.write(process.stdout)
        return AudioSegment(str(path), recording_id=id)
