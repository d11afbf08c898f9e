"""Findings of the corpus check: their kinds, the utterances that they exclude, and the reports."""

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from toolkit.corpus.config import CheckConfig
from toolkit.errors import ToolkitError
from toolkit.storage.files import open_atomically, write_atomically
from toolkit.storage.paths import places_of
from toolkit.storage.reading import reading

ERROR, WARNING, NOTE = "error", "warning", "note"


@dataclass(frozen=True)
class FindingKind:
    """A kind of finding: its name, severity and fix."""

    severity: str
    """"error": utterances are excluded; "warning": to be inspected; "note": no action needed."""
    excluded_from: str
    """Splits from which the utterance is excluded: "all", "train" or "none"."""
    title: str
    """Short description."""
    fix: str
    """How to fix it."""


FINDING_KINDS: dict[str, FindingKind] = {
    "missing-audio": FindingKind(
        ERROR,
        "all",
        "transcript without audio",
        "add the file, correct its path, or delete the line",
    ),
    "unreadable-audio": FindingKind(
        ERROR,
        "all",
        "audio that cannot be read",
        "copy the file again from its source, convert it to WAV or FLAC, or delete it",
    ),
    "empty-audio": FindingKind(
        ERROR, "all", "audio without samples", "copy the file again from its source, or delete it"
    ),
    "truncated-audio": FindingKind(
        ERROR,
        "all",
        "audio shorter than its header says, or that cannot be decoded to its end",
        "copy the file again from its source (a broken download or a full disk)",
    ),
    "open-end": FindingKind(
        WARNING,
        "none",
        "Ogg audio whose end is not marked, so that it may be truncated",
        "copy the file again from its source if the speech ends too early",
    ),
    "scaled-samples": FindingKind(
        ERROR,
        "all",
        "float samples scaled to integers, far beyond [-1, 1]",
        "divide them by 32768, or write 16-bit integers",
    ),
    "missing-features": FindingKind(
        ERROR,
        "all",
        "transcript without features",
        "compute the features, or delete the line",
    ),
    "unreadable-features": FindingKind(
        ERROR,
        "all",
        "features that cannot be read, or have values that are not numbers",
        "compute them again, or copy their archive again from its source; name archives by paths "
        "that exist (--map-path OLD=NEW, corpus.map_paths)",
    ),
    "empty-features": FindingKind(
        ERROR, "all", "features without frames", "compute them again, or delete the utterance"
    ),
    "other-dimension": FindingKind(
        ERROR,
        "all",
        "features whose number of values per frame differs from most others",
        "compute all features with the same configuration",
    ),
    "no-channel": FindingKind(
        ERROR,
        "all",
        "utterance that names a channel that its file does not have, or that names no channel "
        "although other utterances of the file do",
        "correct its channel: A or 1 for the first, B or 2 for the second (in lhotse's cuts 0 and "
        "1); name no channel if a file of one channel is the mix of both sides",
    ),
    "other-channel": FindingKind(
        WARNING,
        "none",
        "utterance for which wav.scp, segments and reco2file_and_channel name different channels",
        "correct these files; until then the channel in wav.scp is used, or else the channel in "
        "segments",
    ),
    "refused-pipe": FindingKind(
        ERROR,
        "all",
        "shell command in a wav.scp, not run",
        "write the audio to a file and put its path in wav.scp; for data that you trust, set "
        "corpus.allow_pipes=true and corpus.pipes=FOLDER (toolkit new-corpus --pipes FOLDER)",
    ),
    "bad-segment": FindingKind(
        ERROR,
        "all",
        "segment outside its recording",
        "correct its times in `segments` or the table",
    ),
    "missing-transcript": FindingKind(
        ERROR,
        "all",
        "audio or features without a transcript",
        "add a transcript line, or delete the audio or the line of feats.scp",
    ),
    "empty-transcript": FindingKind(
        ERROR, "all", "transcript without words", "write what is said, or delete the line"
    ),
    "duplicate-id": FindingKind(
        ERROR,
        "all",
        "utterance id used twice in the same split (the first is kept)",
        "give each utterance an id of its own, or delete the copies",
    ),
    "too-short": FindingKind(
        ERROR,
        "train",
        "audio too short for its transcript",
        "see whether the transcript belongs to the audio; check the segment's times",
    ),
    "too-long": FindingKind(
        ERROR,
        "train",
        "audio longer than check.max_seconds",
        "cut it into segments, or raise check.max_seconds",
    ),
    "unspellable": FindingKind(
        ERROR,
        "train",
        "transcript in which no word has a pronunciation or letters from which to guess one",
        "write the words out in letters, or add them to the lexicon",
    ),
    "silent-audio": FindingKind(
        ERROR,
        "train",
        "all samples are zero, or channels cancel each other in their mean",
        "record it again, keep one channel, or delete it",
    ),
    "digital-silence": FindingKind(
        WARNING,
        "none",
        "more than a tenth of the recording is digital silence: zeros for 0.2 s or longer, as from "
        "padding, a muted microphone or a noise gate",
        "cut padding off; other zeros are not counted in mean normalisation, and are recognised as "
        "silence",
    ),
    "clipped-audio": FindingKind(
        WARNING,
        "none",
        "more than 0.1 % of the samples are clipped: three or more in a row at full scale",
        "record at a lower level, or get the recording before its level was raised",
    ),
    "duplicate-recording": FindingKind(
        WARNING,
        "none",
        "recording id used twice in wav.scp (the first is read)",
        "give each recording an id of its own, or delete the other lines",
    ),
    "other-frames": FindingKind(
        WARNING,
        "none",
        "features whose number of frames differs from utt2num_frames, segments or utt2dur",
        "see whether these files and feats.scp were made together: features of other audio have "
        "the wrong transcript",
    ),
    "same-audio-and-text": FindingKind(
        WARNING,
        "none",
        "same transcript and audio (or features) as another utterance",
        "delete the copy; a copy of a test utterance in train makes the result too good",
    ),
    "speaker-overlap": FindingKind(
        WARNING,
        "none",
        "speaker in more than one split",
        "move the speaker to one split: results on speakers seen in training are too good",
    ),
    "known-speakers": FindingKind(
        NOTE,
        "none",
        "held-out utterances of speakers in the training data (corpus.hold_out=utterances)",
        "none needed; but error rates are those of known speakers, who are easier to recognise",
    ),
    "shared-id": FindingKind(
        WARNING,
        "none",
        "utterance id in more than one split",
        "see whether the same utterance is in both; give each an id of its own",
    ),
    "one-speaker": FindingKind(
        WARNING,
        "none",
        "split with one speaker",
        "make sure that the corpus names its speakers: normalisation and splits use them",
    ),
    "no-speaker": FindingKind(
        WARNING,
        "none",
        "utterance without a speaker: its recording, or a cluster of recordings, counts as its "
        "speaker",
        "name its speaker in utt2spk or the table, because normalisation, adaptation and splits "
        "are by speaker; corpus.speakers=auto clusters recordings",
    ),
    "two-speakers": FindingKind(
        WARNING,
        "none",
        "utterance with two speakers in utt2spk (the first is kept)",
        "delete the wrong line",
    ),
    "bad-characters": FindingKind(
        WARNING,
        "none",
        "characters outside the alphabet",
        "write numbers and symbols out as the words that are said; add letters of the language to "
        "check.alphabet",
    ),
    "mixed-alphabets": FindingKind(
        WARNING,
        "none",
        "word with letters of two alphabets, which looks like another word",
        "type the letters that look alike, such as A, O and i, in the alphabet of the language",
    ),
    "tag": FindingKind(
        NOTE,
        "none",
        "tags in brackets, such as [laughter] and <long pause>, which are left out of transcripts",
        "none needed if they are events; set lang.tags=keep if they are words, or lang.tags=noise "
        "to train them as the noise phone, as <unk> always is. With lang.normaliser=as-given, tags "
        "that are in the lexicon are kept",
    ),
    "all-oov": FindingKind(
        WARNING,
        "none",
        "transcript without any word of the lexicon",
        "check language and spelling; add the words to the lexicon: all their pronunciations are "
        "guessed",
    ),
    "short-test": FindingKind(
        WARNING,
        "none",
        "audio too short for its transcript (still decoded and scored)",
        "see whether the transcript belongs to the audio; check the segment's times",
    ),
    "other-length": FindingKind(
        WARNING,
        "none",
        "recording longer than its manifest says; the whole recording is used",
        "write the manifest of the recordings again, or give the times of the utterance",
    ),
    "trimmed-segment": FindingKind(
        NOTE,
        "none",
        "segment that ended after its recording, by one frame to 0.5 s, and was trimmed",
        "correct its end in `segments` (-1 means the end of the recording)",
    ),
    "replaced-pipe": FindingKind(
        NOTE,
        "none",
        "command that only decodes a file: the file is read, and the command is not run",
        "none needed; to avoid this note, put the path of the file in wav.scp",
    ),
    "other-rate": FindingKind(
        NOTE,
        "none",
        "audio that will be resampled, because its rate is not check.sampling_rate",
        "none needed; but speech recorded at 8 kHz has no energy above 4 kHz",
    ),
    "many-channels": FindingKind(
        NOTE,
        "none",
        "audio with several channels, which will be averaged to one",
        "none needed; but if the channels hold different talkers, name the channel of each "
        "utterance",
    ),
    "oov": FindingKind(
        NOTE,
        "none",
        "transcript with words that the lexicon lacks; if a word has letters, its pronunciation is "
        "guessed",
        "add frequent words to the lexicon, and write numbers out; oov.tsv lists all words that "
        "the lexicon lacks",
    ),
    "bad-line": FindingKind(
        ERROR,
        "all",
        "line from which no utterance can be read: in a table, too many or too few fields, or an "
        "open quotation mark; in cuts, a damaged or unusable cut",
        "put a text that contains the separator in quotation marks, complete the line, or write "
        "the cuts again with lhotse",
    ),
    "not-utf8": FindingKind(
        ERROR,
        "all",
        "line with bytes that are not UTF-8, shown as \\xNN",
        "type these letters again, in UTF-8",
    ),
}
"""Kinds by name, in the order of the report."""
SURVEY_KINDS: dict[str, FindingKind] = {
    "digits": FindingKind(
        WARNING,
        "none",
        "transcript with digits",
        "write numbers out as they are said: a word with digits that the lexicon lacks has no"
        " pronunciation",
    ),
    "garbled letters": FindingKind(
        WARNING,
        "none",
        "transcript with garbled letters",
        "a program read UTF-8 as Latin-1 and saved it again: export the transcripts as UTF-8",
    ),
    "like-speakers": FindingKind(
        WARNING,
        "none",
        "speakers whose names differ only in letter case",
        "write a speaker's name the same everywhere; otherwise splits may share the speaker",
    ),
    "no-end": FindingKind(
        WARNING,
        "none",
        "utterance that lasts to the end of the recording although others begin later",
        "give each utterance an end, in seconds from the recording's beginning, in `segments` or a"
        " column `end`; a column of durations is not read",
    ),
}
"""Kinds that only `toolkit new-corpus` finds, in addition to some of `FINDING_KINDS`."""


@dataclass(frozen=True)
class Finding:
    """A fault of one utterance, speaker or split."""

    kind: str
    """Name in `FINDING_KINDS`."""
    split: str
    """The split it was found in."""
    id: str
    """Utterance, speaker (speaker-overlap) or split (one-speaker)."""
    detail: str
    """The file and what is wrong with it."""
    copy: int = 1
    """Which cut of this id in the split; 1 is the first."""

    @property
    def excluded(self) -> bool:
        """Whether later stages leave the utterance out because of this finding."""
        scope = FINDING_KINDS[self.kind].excluded_from
        return scope == "all" or (scope == "train" and is_train(self.split))


def is_train(split: str) -> bool:
    """Return whether a split is training data; more kinds of faults exclude an utterance there."""
    return split.startswith("train")


HEADER = "split\tutterance\tcopy\treason\n"


class ExclusionError(ToolkitError):
    """Raised when the list of excluded utterances cannot be read."""


@dataclass(frozen=True, order=True)
class Exclusion:
    """An utterance to leave out."""

    split: str
    """Name of the split."""
    id: str
    """Utterance id."""
    copy: int
    """1 for the first cut of this id in the split, 2 for the second, and so on."""
    reason: str
    """Why it is left out."""


def write_exclusions(exclusions: Iterable[Exclusion], path: Path) -> None:
    """Write a header and one tab-separated line per exclusion, sorted.

    Paths in reasons are written as in manifests, because later stages read this file, and moving
    the run must not change it.
    """
    places = places_of(path)
    with open_atomically(path) as file:
        file.write(HEADER)
        for item in sorted(exclusions):
            reason = " ".join(item.reason.split())
            reason = places.relativize_in(reason) if places else reason
            file.write(f"{item.split}\t{item.id}\t{item.copy}\t{reason}\n")


def read_exclusions(path: Path, split: str) -> set[tuple[str, int]]:
    """Return the (utterance id, copy) pairs to leave out of `split`.

    Raises:
      ExclusionError: the file is missing or damaged; the message names it and the line.
    """
    out = set()
    with reading(path, ExclusionError, "run the check again"), open(path, encoding="utf-8") as file:
        if file.readline() != HEADER:
            raise ValueError("its first line is not `split utterance copy reason`")
        for number, line in enumerate(file, start=2):
            fields = line.rstrip("\n").split("\t", 3)
            if len(fields) != 4 or not fields[2].isdecimal():
                raise ValueError(
                    f"line {number} does not have the fields `split utterance copy reason`"
                )
            if fields[0] == split:
                out.add((fields[1], int(fields[2])))
    return out


DURATION_EDGES = (0, 1, 2, 5, 10, 15, 20, 30, 60)
"""Seconds at which the histogram's bins begin."""
OOV_SHOWN = 30
BAR_WIDTH = 40
EXAMPLES = 3
"""Largest number of ids named per kind in the overview, and per kind of note and split in the
lists."""


@dataclass(frozen=True)
class SplitSummary:
    """Size and duration figures of one split."""

    split: str
    """Name of the split."""
    utterances: int
    """Number of cuts."""
    excluded: int
    """Number of cuts that later stages leave out."""
    speakers: int
    """Number of speakers."""
    seconds: list[float]
    """Durations of the cuts with audio, sorted."""
    tokens: int
    """Word tokens of the transcripts."""
    types: int
    """Word types."""
    oov_tokens: int
    """Out-of-vocabulary word tokens."""
    oov_types: int
    """Out-of-vocabulary word types."""
    formats: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Cuts by (sampling rate in Hz, channels)."""


def write_report(
    summaries: list[SplitSummary],
    findings: list[Finding],
    oov: dict[str, dict[str, list[str]]],
    config: CheckConfig,
    out: Path,
) -> None:
    """Write report.txt, report.json and findings.tsv to the folder `out`."""
    sections = [
        _splits(summaries),
        _formats(summaries),
        _durations(summaries),
        _kinds(findings),
        *(_details(kind, findings, config.listed) for kind in FINDING_KINDS),
        _oov(oov),
    ]
    write_atomically(out / "report.txt", "\n\n".join(part for part in sections if part) + "\n")
    report = {
        "splits": [_plain(summary) for summary in summaries],
        "kinds": {kind: dataclasses.asdict(FINDING_KINDS[kind]) for kind in FINDING_KINDS},
        "findings": [
            {**dataclasses.asdict(finding), "excluded": finding.excluded} for finding in findings
        ],
    }
    write_findings(findings, out / "findings.tsv")
    write_atomically(out / "report.json", json.dumps(report, indent=1, ensure_ascii=False) + "\n")


def write_findings(findings: list[Finding], path: Path) -> None:
    """Write a header and one line per finding, in order.

    Tabs and line ends within a field become spaces. Paths are written as in the manifests.
    """
    places = places_of(path)
    with open_atomically(path) as file:
        file.write("severity\tkind\tsplit\tid\tcopy\texcluded\tdetail\n")
        for item in findings:
            where = (item.split, item.id, str(item.copy), "yes" if item.excluded else "no")
            fields = (FINDING_KINDS[item.kind].severity, item.kind, *where, item.detail)
            line = "\t".join(" ".join(field.split()) for field in fields)
            file.write((places.relativize_in(line) if places else line) + "\n")


def write_oov(oov: dict[str, dict[str, list[str]]], path: Path) -> None:
    """Write each split's out-of-vocabulary words and their utterances, most frequent first."""
    with open_atomically(path) as file:
        file.write("split\tword\tcount\tutterances\n")
        for split, words in oov.items():
            for word, ids in _by_count(words):
                file.write(f"{split}\t{word}\t{len(ids)}\t{' '.join(dict.fromkeys(ids))}\n")


def _by_count(words: dict[str, list[str]]) -> list[tuple[str, list[str]]]:
    """Sort words with their utterances by descending count."""
    return sorted(words.items(), key=lambda item: (-len(item[1]), item[0]))


def _plain(summary: SplitSummary) -> dict[str, object]:
    """Convert a summary to plain data for JSON."""
    fields = dict(vars(summary))
    fields["hours"] = sum(fields.pop("seconds")) / 3600
    fields["formats"] = [
        {"sampling_rate": rate, "channels": channels, "utterances": count}
        for (rate, channels), count in sorted(summary.formats.items())
    ]
    return fields


def _table(rows: list[list[str]]) -> str:
    """Format rows as a table: first column aligned left, the others right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = (
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def _splits(summaries: list[SplitSummary]) -> str:
    """Return the table of the splits' sizes."""
    head = "split utterances excluded speakers hours words OOV-tokens OOV-% OOV-types"
    rows = [head.split()]
    for s in summaries:
        numbers = (s.utterances, s.excluded, s.speakers)
        # Percent of the word tokens that the lexicon lacks.
        rate = 100 * s.oov_tokens / max(s.tokens, 1)
        rows.append(
            [
                s.split,
                *map(str, numbers),
                f"{sum(s.seconds) / 3600:.2f}",
                str(s.tokens),
                str(s.oov_tokens),
                f"{rate:.2f}",
                f"{s.oov_types}/{s.types}",
            ]
        )
    return "Splits\n" + _table(rows)


def _formats(summaries: list[SplitSummary]) -> str:
    """Return the table of the audio formats."""
    rows = [["split", "Hz", "channels", "utterances"]]
    for summary in summaries:
        for (rate, channels), count in sorted(summary.formats.items()):
            rows.append([summary.split, str(rate), str(channels), str(count)])
    if len(rows) == 1:  # a corpus of features
        return ""
    return "Sampling rates and channels\n" + _table(rows)


def _durations(summaries: list[SplitSummary]) -> str:
    """Return each split's shortest, median and longest duration, and a histogram."""
    parts = ["Durations in seconds"]
    for summary in (s for s in summaries if s.seconds):
        seconds = summary.seconds
        parts.append(
            f"{summary.split}: shortest {seconds[0]:.2f}, median {median(seconds):.2f}, "
            f"longest {seconds[-1]:.2f}"
        )
        # A histogram: the longest bar has BAR_WIDTH characters.
        ends = [*DURATION_EDGES[1:], float("inf")]
        counts = [
            sum(begin <= value < end for value in seconds)
            for begin, end in zip(DURATION_EDGES, ends, strict=True)
        ]
        for begin, end, count in zip(DURATION_EDGES, ends, counts, strict=True):
            if count:
                name = f"{begin}-{end:g}" if end < float("inf") else f"{begin}-"
                bar = "#" * max(1, round(BAR_WIDTH * count / max(counts)))
                parts.append(f"  {name:>6} {count:>7} {bar}")
    return "\n".join(parts)


def _kinds(findings: list[Finding]) -> str:
    """Return the table of findings by kind."""
    counts = Counter(finding.kind for finding in findings)
    excluded = Counter(finding.kind for finding in findings if finding.excluded)
    if not counts:
        return "No faults found."
    rows = [["finding", "severity", "count", "excluded", "first"]]
    first: dict[str, list[str]] = {}
    for finding in findings:
        first.setdefault(finding.kind, []).append(finding.id)
    for severity in (ERROR, WARNING, NOTE):
        for kind in (
            kind
            for kind in FINDING_KINDS
            if FINDING_KINDS[kind].severity == severity and counts[kind]
        ):
            examples = ", ".join(list(dict.fromkeys(first[kind]))[:EXAMPLES])
            rows.append([kind, severity, str(counts[kind]), str(excluded[kind]), examples])
    # Examples are not aligned: their widths differ too much.
    lines = _table([row[:-1] for row in rows]).splitlines()
    table_lines = [f"{line}  {row[-1]}" for line, row in zip(lines, rows, strict=True)]
    return "\n".join(["Findings (all in findings.tsv)", *table_lines])


def _details(kind: str, findings: list[Finding], listed: int) -> str:
    """List the findings of one kind, up to `listed` per split, and how to fix them."""
    kind_findings = [finding for finding in findings if finding.kind == kind]
    if not kind_findings:
        return ""
    kind_info = FINDING_KINDS[kind]
    listed = min(listed, EXAMPLES) if kind_info.severity == NOTE else listed
    lines = [f"{kind_info.severity.upper()} {kind}: {kind_info.title}", f"  Fix: {kind_info.fix}."]
    for split in dict.fromkeys(item.split for item in kind_findings):
        split_findings = [item for item in kind_findings if item.split == split]
        lines += [
            f"  {split}  {item.detail if item.id == split else f'{item.id}  {item.detail}'}"
            for item in split_findings[:listed]
        ]
        if len(split_findings) > listed:
            lines.append(
                f"  {split}  ... and {len(split_findings) - listed} more, all in findings.tsv"
            )
    return "\n".join(lines)


def _oov(oov: dict[str, dict[str, list[str]]]) -> str:
    """Return the list of out-of-vocabulary words."""
    parts = ["Most frequent words that the lexicon lacks (all in oov.tsv)"]
    for split, words in oov.items():
        if words:
            frequent_words = (f"{word} {len(ids)}" for word, ids in _by_count(words)[:OOV_SHOWN])
            parts.append(f"  {split}: {', '.join(frequent_words)}")
    return "\n".join(parts) if len(parts) > 1 else ""
