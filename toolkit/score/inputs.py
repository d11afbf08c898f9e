"""Reading of the inputs of `toolkit score`: references and hypotheses by utterance."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from toolkit.align.ctm_textgrid import CtmError
from toolkit.errors import ToolkitError
from toolkit.score.alignment import Side
from toolkit.score.nist.formats import StmError, assign, filtered, read_scored_ctm, read_stm
from toolkit.score.nist.glm import Glm, GlmError
from toolkit.score.transcripts import (
    FOLDER,
    JSON_FOLDER,
    Form,
    TranscriptError,
    Transcripts,
    form_by_name,
    read_speakers,
    read_transcripts,
)
from toolkit.storage.lines import LISTED

BY_ID = "id"
"""Given in place of a file of speakers: they are then taken from the ids; see `speaker_of_id`."""

HARDLY_PLAIN = 10
"""If at least this many lines begin with the same word on both sides, and these words are all
different, they are taken for ids. In fewer lines without ids, a recogniser may well get all first
words right."""


@dataclass(frozen=True)
class ScoringInput:
    """References and hypotheses by utterance id."""

    refs: Mapping[str, str]
    hyps: Mapping[str, str]
    speakers: Mapping[str, str] | None
    """Speaker of every reference; None if they are not known."""
    notes: tuple[str, ...] = ()
    """Messages about the formats that were read, and about texts that are not scored."""
    marked: bool = False
    """Whether texts may have alternatives: see `toolkit.score.nist.grammar`."""


class InputReader:
    """Reads pairs of files, each file once.

    Args:
      form: format of transcript files, see `read_transcripts`; STM and CTM files are recognised by
        their names.
      speakers: a file like Kaldi's utt2spk, or `BY_ID`; None: the speakers that the references
        name.
      glm: a file of mapping rules, applied to everything that is read; see
        `toolkit.score.nist.glm`.
    """

    def __init__(
        self,
        form: Form | Literal["auto"] = "auto",
        speakers: str | None = None,
        glm: Path | None = None,
    ) -> None:
        self._form = form
        self._speakers = speakers
        self._glm = glm
        self._read: dict[tuple[Path, Side, bool], Transcripts] = {}

    def read(self, ref: Path, hyp: Path) -> ScoringInput:
        """Read a reference and its hypothesis.

        Args:
          ref: a file in any format of `read_transcripts`, or an STM file.
          hyp: a file in any format of `read_transcripts`; a CTM file if `ref` is an STM file.

        Raises:
          TranscriptError, StmError: a file cannot be read; the message names the file and line.
        """
        if form_by_name(ref) == "stm" and not ref.is_dir():
            return self._by_time(ref, hyp)
        first = self._transcripts(ref, "ref")
        second = self._hypotheses(hyp, first)
        first, second, id_notes = self._with_ids(ref, hyp, first, second)
        if first.texts.keys().isdisjoint(second.texts):
            first, second = _by_stem(first), _by_stem(second)
        notes: tuple[str, ...] = ()
        if self._form == "auto":
            read_as = ", ".join(
                f"{path} as {side.form}" for path, side in {ref: first, hyp: second}.items()
            )
            notes = (f"Read {read_as} (--format forces one).", *id_notes)
        if first.faulty:
            hyps_left = {id: t for id, t in second.texts.items() if id not in first.faulty}
            second = replace(second, texts=hyps_left)
            notes += (_note_faulty(first),)
        speakers = self._speakers_of(first.texts, first.speakers)
        if first.speakers and speakers is None:
            silent = [id for id in first.texts if id not in first.speakers]
            notes += (
                f"Note: {ref} names no speaker for {len(silent)} of {len(first.texts)} utterances, "
                f"first {silent[0]}: all utterances are scored as if no speaker were known.",
            )
        hyps: Mapping[str, str] = second.texts
        marked = first.marked or second.marked or self._glm is not None
        alike: dict[str, Callable[[str], str]] = {"Unicode's normal form": _composed}
        if "trn" in (first.form, second.form):
            alike["case"] = str.casefold
        for difference, folded in alike.items():
            hyps, renamed = _as_referenced(first.texts, hyps, folded)
            if renamed:
                notes += (
                    f"Note: {renamed} utterance ids differ only in {difference} and count as "
                    "the same.",
                )
        return ScoringInput(first.texts, hyps, speakers, notes, marked)

    def _transcripts(self, path: Path, side: Side, named: bool = False) -> Transcripts:
        """Read transcripts and apply the mapping rules; a file is read once."""
        if (path, side, named) not in self._read:
            transcripts = read_transcripts(
                path, self._form, named, side, leave_out_faulty=side == "ref"
            )
            if self._glm is not None:
                glm = Glm.read(self._glm, "ctm" if transcripts.form == "ctm" else "trn", side)
                texts = {id: glm.filter(t, f"{path}: {id}") for id, t in transcripts.texts.items()}
                transcripts = replace(transcripts, texts=texts)
            self._read[path, side, named] = transcripts
        return self._read[path, side, named]

    def _hypotheses(self, path: Path, refs: Transcripts) -> Transcripts:
        """Read hypotheses, whose lines must begin with ids if the references have ids."""
        named = self._form == "auto" and refs.form != "plain"
        guessed = not path.is_dir() and form_by_name(path) is None
        return self._transcripts(path, "hyp", named and guessed)

    def _with_ids(
        self, ref: Path, hyp: Path, first: Transcripts, second: Transcripts
    ) -> tuple[Transcripts, Transcripts, tuple[str, ...]]:
        """Read plain lines as Kaldi's text if the other side shows that first words are ids.

        Returns:
          References, hypotheses, and notes about doubtful cases.
        """
        if self._form != "auto" or first.form != "plain":
            return first, second, ()
        refs = self._as_text(ref, "ref")
        if refs is None:
            return first, second, ()
        if second.form != "plain":
            fits = first.texts.keys().isdisjoint(second.texts) and refs.texts.keys() & second.texts
            return (refs if fits else first), second, ()
        hyps = self._as_text(hyp, "hyp")
        if hyps is None or len(refs.texts) < 2 or refs.texts.keys() != hyps.texts.keys():
            return first, second, ()
        if list(refs.texts) != list(hyps.texts) or len(refs.texts) >= HARDLY_PLAIN:
            return refs, hyps, ()
        note = (
            f"Note: {ref} and {hyp} have the same first words. If these are ids, give --format "
            "text."
        )
        return first, second, (note,)

    def _as_text(self, path: Path, side: Side) -> Transcripts | None:
        """Read a file as Kaldi's text; None if its lines do not begin with ids."""
        try:
            return self._transcripts(path, side, named=True)
        except TranscriptError:
            return None

    def _by_time(self, ref: Path, hyp: Path) -> ScoringInput:
        """Read an STM file and a CTM file, whose words are assigned to the segments by time."""
        if form_by_name(hyp) != "ctm":
            raise TranscriptError(
                f"{hyp}: the reference {ref} is an STM file, so the hypothesis must be a CTM file "
                "whose name ends in .ctm"
            )
        try:
            segments, words = read_stm(ref), read_scored_ctm(hyp)
            # As in csrfilt.sh: rules for references on the STM, rules for hypotheses on the CTM.
            if self._glm is not None:
                rules = Glm.read(self._glm, "stm", "ref")
                segments = [
                    replace(s, text=rules.filter(s.text, f"{ref}: {s.recording} at {s.start:g} s"))
                    for s in segments
                ]
                rules = Glm.read(self._glm, "ctm", "hyp")
                try:
                    words = filtered(words, rules)
                except GlmError as error:
                    raise GlmError(f"{hyp}: {error}") from error
            by_segment = assign(segments, words)
        except (CtmError, StmError) as error:
            named = str(error).startswith((str(ref), str(hyp)))
            raise error if named else StmError(f"{ref}, {hyp}: {error}") from error
        notes = [f"Read {ref} as stm, {hyp} as ctm; {len(by_segment.refs)} segments."]
        if by_segment.ignored:
            notes.append(f"Note: {by_segment.ignored} segments are marked as not to be scored.")
        if by_segment.overlapping:
            notes.append(
                f"Note: {by_segment.overlapping} segments overlap an earlier one of their channel. "
                "As in sclite, words there are assigned by time, regardless of the speaker."
            )
        notes += [
            f"Note: {words} words recognised in {channel} are not scored: {ref} has no segment "
            "there."
            for channel, words in by_segment.unscored_channels
        ]
        speakers = self._speakers_of(by_segment.refs, by_segment.speakers)
        return ScoringInput(by_segment.refs, by_segment.hyps, speakers, tuple(notes), marked=True)

    def _speakers_of(
        self, refs: Mapping[str, str], named: Mapping[str, str]
    ) -> Mapping[str, str] | None:
        """Return the speakers: from the ids, from a file, or as the transcripts name them."""
        if self._speakers == BY_ID:
            return {utterance: speaker_of_id(utterance) for utterance in refs}
        if self._speakers is not None:
            return read_speakers(Path(self._speakers))
        return named if named and all(utterance in named for utterance in refs) else None


def _note_faulty(refs: Transcripts) -> str:
    """Return a note about the references that are not UTF-8."""
    listed = "; ".join(list(refs.faulty.values())[:LISTED])
    more = f"; and {len(refs.faulty) - LISTED} more" if len(refs.faulty) > LISTED else ""
    advice = f"; {refs.faulty_advice}" if refs.faulty_advice else ""
    return (
        f"Note: {len(refs.faulty)} of {len(refs.faulty) + len(refs.texts)} references are not UTF-8"
        f" and are not scored: {listed}{more}{advice}"
    )


def _as_referenced(
    refs: Mapping[str, str], hyps: Mapping[str, str], folded: Callable[[str], str]
) -> tuple[Mapping[str, str], int]:
    """Give hypotheses the ids of references that equal theirs after `folded`, such as case folding.

    Returns:
      The hypotheses by their new ids, and how many ids have changed.
    """
    if hyps.keys() <= refs.keys():
        return hyps, 0
    names: dict[str, list[str]] = {}
    for id in refs:
        names.setdefault(folded(id), []).append(id)
    changed = {
        id: names[folded(id)][0]
        for id in hyps
        if id not in refs and len(names.get(folded(id), ())) == 1
    }
    targets = Counter(changed.values())
    changed = {id: to for id, to in changed.items() if to not in hyps and targets[to] == 1}
    return {changed.get(id, id): text for id, text in hyps.items()}, len(changed)


def _composed(id: str) -> str:
    """Return an id with composed letters (Unicode's NFC)."""
    return unicodedata.normalize("NFC", id)


def _by_stem(side: Transcripts) -> Transcripts:
    """Name the texts of a folder by their file names alone, if these are all different."""
    texts = {Path(id).name: text for id, text in side.texts.items()}
    return (
        replace(side, texts=texts)
        if side.form in (FOLDER, JSON_FOLDER) and len(texts) == len(side.texts)
        else side
    )


def speaker_of_id(utterance: str) -> str:
    """Return the part of an id before its first slash, else its first hyphen, else underscore.

    sclite does the same with `-i spu_id`, except for slashes, which ids of files have.

    Raises:
      SpeakerError: the id has none of these, or nothing before them.
    """
    for mark in "/-_":
        speaker, separator, _ = utterance.partition(mark)
        if separator and speaker:
            return speaker
    raise SpeakerError(
        f"the id {utterance!r} does not begin with a speaker and /, - or _: give --speakers a file "
        "with lines `utterance speaker`"
    )


class SpeakerError(ToolkitError):
    """An utterance id that does not begin with a speaker's name."""


def names_of(paths: list[Path]) -> list[str]:
    """Return short names of files or folders: the parts in which their paths differ.

    White space in them is replaced by `_`. If names would then be equal, numbers are used instead.
    """
    shared = 0
    parts = [path.parts for path in paths]
    while all(len(p) > shared + 1 for p in parts) and len({p[shared] for p in parts}) == 1:
        shared += 1
    names = [re.sub(r"\s", "_", "/".join(p[shared:])) for p in parts]
    if len(set(names)) < len(names):
        return [str(number) for number in range(1, len(names) + 1)]
    return names
