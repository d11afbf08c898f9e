"""What `toolkit score` is given, as references and hypotheses by utterance."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from toolkit.align.ctm import CtmError, read_ctm
from toolkit.errors import ToolkitError
from toolkit.score.lines import TranscriptError
from toolkit.score.nist import StmError, read_stm
from toolkit.score.read import Transcripts, form_by_name, read_speakers, read_transcripts
from toolkit.score.segments import assign

BY_ID = "id"
"""In the place of a file of speakers: the part of an utterance id before its first - or _."""


@dataclass(frozen=True)
class Sides:
    """References and hypotheses."""

    refs: Mapping[str, str]
    hyps: Mapping[str, str]
    speakers: Mapping[str, str] | None
    """Of every reference; None where they are not known."""
    notes: tuple[str, ...] = ()
    """What was read, and what was passed over."""


class SideReader:
    """Reads pairs of files, each file once.

    Args:
      form: of transcript files, see `read_transcripts`; STM and CTM are known by their names.
      speakers: a file like Kaldi's utt2spk, or `BY_ID`; None: what the references name.
    """

    def __init__(self, form: str = "auto", speakers: str | None = None) -> None:
        self._form = form
        self._speakers = speakers
        self._read: dict[Path, Transcripts] = {}

    def read(self, ref: Path, hyp: Path) -> Sides:
        """Read one pair.

        Args:
          ref: any form that `read_transcripts` knows, or an STM file.
          hyp: likewise; a CTM file if `ref` is an STM file.

        Raises:
          TranscriptError, StmError: names the file and line.
        """
        if self._form == "auto" and form_by_name(ref) == "stm" and not ref.is_dir():
            return self._by_time(ref, hyp)
        first, second = self._transcripts(ref), self._transcripts(hyp)
        notes = ()
        if self._form == "auto":
            read_as = ", ".join(
                f"{path} as {side.form}" for path, side in {ref: first, hyp: second}.items()
            )
            notes = (f"Read {read_as} (--format forces one).",)
        return Sides(first.texts, second.texts, self._who(first.texts, first.speakers), notes)

    def _transcripts(self, path: Path) -> Transcripts:
        if path not in self._read:
            self._read[path] = read_transcripts(path, self._form)
        return self._read[path]

    def _by_time(self, ref: Path, hyp: Path) -> Sides:
        if form_by_name(hyp) != "ctm":
            raise TranscriptError(
                f"{hyp}: the reference {ref} is an STM file, against which only a CTM file can be "
                "scored: name it *.ctm"
            )
        try:
            found = assign(read_stm(ref), read_ctm(hyp))
        except (CtmError, StmError) as error:
            named = str(error).startswith((str(ref), str(hyp)))
            raise error if named else StmError(f"{ref}, {hyp}: {error}") from error
        notes = [f"Read {ref} as stm, {hyp} as ctm; {len(found.refs)} segments."]
        if found.ignored:
            notes.append(f"Note: {found.ignored} segments are marked as not to be scored.")
        notes += [
            f"Note: {words} words recognised in {channel}, of which {ref} has no segment, are not "
            "scored."
            for channel, words in found.orphans
        ]
        return Sides(found.refs, found.hyps, self._who(found.refs, found.speakers), tuple(notes))

    def _who(self, refs: Mapping[str, str], named: Mapping[str, str]) -> Mapping[str, str] | None:
        if self._speakers == BY_ID:
            return {utterance: speaker_of_id(utterance) for utterance in refs}
        if self._speakers is not None:
            return read_speakers(Path(self._speakers))
        return named if named and all(utterance in named for utterance in refs) else None


def speaker_of_id(utterance: str) -> str:
    """Give the part of an id before its first hyphen, or underscore without one.

    As sclite does with `-i spu_id`.

    Raises:
      SpeakerError: it has neither.
    """
    for mark in "-_":
        speaker, found, _ = utterance.partition(mark)
        if found and speaker:
            return speaker
    raise SpeakerError(
        f"the id {utterance!r} has no - or _ behind a speaker's name: give a file of "
        "`utterance speaker` lines"
    )


class SpeakerError(ToolkitError):
    """An utterance id that does not tell the speaker."""


def names_of(paths: list[Path]) -> list[str]:
    """Name files or folders by the parts of their paths that tell them apart."""
    if len(set(paths)) < len(paths):
        return [str(number) for number in range(1, len(paths) + 1)]
    shared = 0
    parts = [path.parts for path in paths]
    while all(len(p) > shared + 1 for p in parts) and len({p[shared] for p in parts}) == 1:
        shared += 1
    return [re.sub(r"\s", "_", "/".join(p[shared:])) for p in parts]
