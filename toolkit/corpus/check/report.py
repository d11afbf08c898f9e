"""Reports of the check: report.txt, report.json, findings.tsv and oov.tsv."""

import dataclasses
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from toolkit.corpus.check.findings import ERROR, KINDS, NOTE, WARNING, Finding
from toolkit.corpus.config import CheckConfig
from toolkit.storage.files import open_atomically, write_atomically
from toolkit.storage.paths import places_of

DURATION_EDGES = (0, 1, 2, 5, 10, 15, 20, 30, 60)
"""Seconds at which the histogram's bins begin."""
OOV_SHOWN = 30
BAR_WIDTH = 40
EXAMPLES = 3
"""Ids shown of a kind in the overview, and of a note in its list, by split."""


@dataclass(frozen=True)
class SplitSummary:
    """The size of one split."""

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
    """Word tokens that the lexicon lacks."""
    oov_types: int
    """Word types that the lexicon lacks."""
    formats: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Cuts by (sampling rate in Hz, channels)."""


def write_report(
    summaries: list[SplitSummary],
    findings: list[Finding],
    oov: dict[str, dict[str, list[str]]],
    config: CheckConfig,
    out: Path,
) -> None:
    """Write report.txt, report.json and findings.tsv to `out`."""
    sections = [
        _splits(summaries),
        _formats(summaries),
        _durations(summaries),
        _kinds(findings),
        *(_details(kind, findings, config.listed) for kind in KINDS),
        _oov(oov),
    ]
    write_atomically(out / "report.txt", "\n\n".join(part for part in sections if part) + "\n")
    plain = {
        "splits": [_plain(summary) for summary in summaries],
        "kinds": {kind: dataclasses.asdict(KINDS[kind]) for kind in KINDS},
        "findings": [
            {**dataclasses.asdict(finding), "excluded": finding.excluded} for finding in findings
        ],
    }
    write_findings(findings, out / "findings.tsv")
    write_atomically(out / "report.json", json.dumps(plain, indent=1, ensure_ascii=False) + "\n")


def write_findings(findings: list[Finding], path: Path) -> None:
    """Write one line per finding, with a head, in the order in which they were found.

    Tabs and line ends within a field become spaces. Places are named as in the manifests.
    """
    places = places_of(path)
    with open_atomically(path) as file:
        file.write("severity\tkind\tsplit\tid\tcopy\texcluded\tdetail\n")
        for item in findings:
            where = (item.split, item.id, str(item.copy), "yes" if item.excluded else "no")
            fields = (KINDS[item.kind].severity, item.kind, *where, item.detail)
            line = "\t".join(" ".join(field.split()) for field in fields)
            file.write((places.names_in(line) if places else line) + "\n")


def write_oov(oov: dict[str, dict[str, list[str]]], path: Path) -> None:
    """Write one line per split and word: count and utterances, the most frequent first."""
    with open_atomically(path) as file:
        file.write("split\tword\tcount\tutterances\n")
        for split, words in oov.items():
            for word, ids in _by_count(words):
                file.write(f"{split}\t{word}\t{len(ids)}\t{' '.join(dict.fromkeys(ids))}\n")


def _by_count(words: dict[str, list[str]]) -> list[tuple[str, list[str]]]:
    return sorted(words.items(), key=lambda item: (-len(item[1]), item[0]))


def _plain(summary: SplitSummary) -> dict[str, object]:
    fields = dict(vars(summary))
    fields["hours"] = sum(fields.pop("seconds")) / 3600
    fields["formats"] = [
        {"sampling_rate": rate, "channels": channels, "utterances": count}
        for (rate, channels), count in sorted(summary.formats.items())
    ]
    return fields


def _table(rows: list[list[str]]) -> str:
    """Align columns: the first to the left, the others to the right."""
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
    head = "split utterances excluded speakers hours words OOV-tokens OOV-% OOV-types"
    rows = [head.split()]
    for s in summaries:
        numbers = (s.utterances, s.excluded, s.speakers)
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
    rows = [["split", "Hz", "channels", "utterances"]]
    for summary in summaries:
        for (rate, channels), count in sorted(summary.formats.items()):
            rows.append([summary.split, str(rate), str(channels), str(count)])
    if len(rows) == 1:  # a corpus of features
        return ""
    return "Sampling rates and channels\n" + _table(rows)


def _durations(summaries: list[SplitSummary]) -> str:
    parts = ["Durations in seconds"]
    for summary in (s for s in summaries if s.seconds):
        seconds = summary.seconds
        parts.append(
            f"{summary.split}: shortest {seconds[0]:.2f}, median {median(seconds):.2f}, "
            f"longest {seconds[-1]:.2f}"
        )
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
    counts = Counter(finding.kind for finding in findings)
    excluded = Counter(finding.kind for finding in findings if finding.excluded)
    if not counts:
        return "No faults found."
    rows = [["finding", "severity", "count", "excluded", "first"]]
    first: dict[str, list[str]] = {}
    for finding in findings:
        first.setdefault(finding.kind, []).append(finding.id)
    for severity in (ERROR, WARNING, NOTE):
        for kind in (kind for kind in KINDS if KINDS[kind].severity == severity and counts[kind]):
            examples = ", ".join(list(dict.fromkeys(first[kind]))[:EXAMPLES])
            rows.append([kind, severity, str(counts[kind]), str(excluded[kind]), examples])
    lines = _table([row[:-1] for row in rows]).splitlines()
    shown = [f"{line}  {row[-1]}" for line, row in zip(lines, rows, strict=True)]
    return "\n".join(["Findings (all in findings.tsv)", *shown])


def _details(kind: str, findings: list[Finding], listed: int) -> str:
    """List the findings of one kind, with the fix."""
    found = [finding for finding in findings if finding.kind == kind]
    if not found:
        return ""
    what = KINDS[kind]
    listed = min(listed, EXAMPLES) if what.severity == NOTE else listed
    lines = [f"{what.severity.upper()} {kind}: {what.title}", f"  Fix: {what.fix}."]
    for split in dict.fromkeys(item.split for item in found):
        here = [item for item in found if item.split == split]
        lines += [
            f"  {split}  {item.detail if item.id == split else f'{item.id}  {item.detail}'}"
            for item in here[:listed]
        ]
        if len(here) > listed:
            lines.append(f"  {split}  ... and {len(here) - listed} more, all in findings.tsv")
    return "\n".join(lines)


def _oov(oov: dict[str, dict[str, list[str]]]) -> str:
    parts = ["Most frequent words that the lexicon lacks (all in oov.tsv)"]
    for split, words in oov.items():
        if words:
            shown = (f"{word} {len(ids)}" for word, ids in _by_count(words)[:OOV_SHOWN])
            parts.append(f"  {split}: {', '.join(shown)}")
    return "\n".join(parts) if len(parts) > 1 else ""
