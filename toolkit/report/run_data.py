"""The contents of a run for its page: stages, data, findings, decodes and error rates."""

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from toolkit.corpus.findings import read_exclusions
from toolkit.corpus.manifest import FEATURE_MATRIX
from toolkit.errors import ToolkitError
from toolkit.report.charts import SHAPES, Interval, histogram_svg, interval_svg
from toolkit.report.pages import (
    HALF,
    NARROW,
    Cell,
    Column,
    Table,
    TableRow,
    folded,
    joined,
    macros,
    side_by_side,
)
from toolkit.report.run_folder import DAMAGE, RunFolder
from toolkit.score.alignment import Pair
from toolkit.score.results import Result, ResultsError, read_results
from toolkit.score.transcripts import read_transcripts
from toolkit.score.wer import Score, UtteranceScore, score
from toolkit.stages.log import duration, headline
from toolkit.stages.marker import Marker, Progress, UnreadableMarkerError
from toolkit.storage.digests import Content
from toolkit.storage.paths import overlap
from toolkit.storage.reading import regular

STAGE_BEGIN = re.compile(r"^\S+ == (\d+) (.*) \(--stage \d+\)$", re.MULTILINE)
"""The line that the stage log has at the beginning of a stage."""
STATES = ("done", "stale", "partial", "failed")
MAX_TRACEBACK = 4000
"""Largest number of characters shown of a traceback, taken from its end."""


@dataclass(frozen=True)
class StageView:
    """A stage that was started at least once."""

    number: int
    title: str
    state: str
    """One of `STATES`."""
    reason: str = ""
    """Why the stage is not done, or the progress of a partial stage; empty if it is done."""
    marker: Marker | None = None
    seconds: float = 0.0
    """Wall time; of a partial stage, that of its unfinished attempts."""
    traceback: str = ""
    """Traceback of the failure."""


def read_stages(run: RunFolder) -> list[StageView]:
    """Return the stages in order.

    Unlike the recipe's `--list`, which knows the configuration, this only compares the markers with
    each other and checks that the outputs exist; no file is hashed.
    """
    titles = {
        int(number): title for number, title in STAGE_BEGIN.findall(run.text("log.txt") or "")
    }
    markers: dict[int, Marker | None] = {}
    for path in sorted((run.root / "stages").glob("[0-9]*.json")):
        if path.stem.isdecimal():
            try:
                markers[int(path.stem)] = Marker.read(path)
            except UnreadableMarkerError as error:
                markers[int(path.stem)] = None
                run.note(path, error)
    # Stages that were started but have no marker are known by what their attempts left.
    failed = _stage_numbers(run, "stages/[0-9]*.failed.txt")
    partial = _stage_numbers(run, ".partial/[0-9]*.json")
    numbers = sorted({*markers, *failed, *partial})
    return [_stage_view(run, number, titles, markers, failed, partial) for number in numbers]


def _stage_numbers(run: RunFolder, pattern: str) -> set[int]:
    """Return the stage numbers in file names; `.partial/07.progress.json` counts too."""
    names = [path.name.partition(".")[0] for path in run.root.glob(pattern)]
    return {int(name) for name in names if name.isdecimal()}  # not of copies that somebody made


def _stage_view(
    run: RunFolder,
    number: int,
    titles: dict[int, str],
    markers: dict[int, Marker | None],
    failed: set[int],
    partial: set[int],
) -> StageView:
    """Return a stage with its state, time and result."""
    marker = markers.get(number)
    title = marker.title if marker else titles.get(number, "")
    seconds_done = marker.seconds if marker else 0.0
    failure = (run.text(run.directory.failure(number)) or "") if number in failed else ""
    # A failure counts until the stage, or a later one, has been run again.
    if number in failed and not (marker and _passed_over(failure, number, markers)):
        return StageView(
            number,
            title,
            "failed",
            failure.partition("\n")[0],
            marker,
            seconds_done,
            failure[-MAX_TRACEBACK:],
        )
    if number in partial:
        progress = Progress.read(run.directory.progress(number))
        share = f"{100 * min(1.0, progress.done / (progress.total or 1)):.0f} %" if progress else ""
        seconds = progress.seconds if progress else 0.0
        return StageView(number, title, "partial", share, marker, seconds)
    if marker is None:
        return StageView(number, title, "stale", "its marker cannot be read")
    reason = _stale_reason(run, marker, [finished for finished in markers.values() if finished])
    return StageView(number, title, "stale" if reason else "done", reason, marker, seconds_done)


def _passed_over(failure: str, number: int, markers: Mapping[int, Marker | None]) -> bool:
    """Return whether a later stage was started after a failure, whose time is in the third line.

    An attempt with other settings may fail and leave the earlier outputs as they are. The run uses
    these outputs again once it has the earlier settings again.
    """
    lines = failure.splitlines()
    later = [marker.started for n, marker in markers.items() if n > number and marker]
    try:
        when = datetime.fromisoformat(lines[2])
        return any(datetime.fromisoformat(started) > when for started in later)
    except (IndexError, ValueError, TypeError):  # not a time, or one without a zone
        return False


def _stale_reason(run: RunFolder, marker: Marker, markers: list[Marker]) -> str:
    """Return why a stage is out of date; empty if it is not."""
    for name in marker.outputs:
        if not (run.root / name).exists():
            return f"output {name} was deleted"
    # The reader's marker has the digest of what it read, the producer's that of its last output.
    for name, content in marker.provenance.inputs.items():
        for producer in markers:
            for output, output_content in producer.outputs.items():
                if overlap(name, output) and _differs(name, content, output, output_content):
                    return f"input {name} has been changed by stage {producer.stage}"
    return ""


def _differs(name: str, read: Content, output: str, current: Content) -> bool:
    """Return whether the content that a stage has read differs from the current output."""
    if name == output:
        return read.digest != current.digest
    # The input is a file or folder inside the output ...
    if name.startswith(f"{output}/"):
        inside = name.removeprefix(f"{output}/")
        if not read.files:
            return current.files.get(inside) != read.digest
        digests = {file: d for file, d in current.files.items() if file.startswith(f"{inside}/")}
        return digests != {f"{inside}/{file}": digest for file, digest in read.files.items()}
    # ... or the output is inside the folder that was read.
    inside = output.removeprefix(f"{name}/")
    if not current.files:
        return read.files.get(inside) != current.digest
    digests = {file: d for file, d in read.files.items() if file.startswith(f"{inside}/")}
    return digests != {f"{inside}/{file}": digest for file, digest in current.files.items()}


def stage_table(stages: list[StageView]) -> Markup:
    """Return a table of the stages with state, time and result as HTML."""
    longest = max((stage.seconds for stage in stages), default=0.0) or 1.0
    rows = [
        (
            stage,
            100 * stage.seconds / longest,
            duration(stage.seconds) if stage.seconds else "",
            _format_memory(stage.marker),
            headline(stage.marker.headline) if stage.marker else "",
        )
        for stage in stages
    ]
    return macros("run.html").stages(rows)


def _format_memory(marker: Marker | None) -> str:
    """Format the peak memory of a stage; empty if it is not known."""
    if marker is None or not marker.peak_bytes:
        return ""
    mebibytes = marker.peak_bytes / 2**20
    return f"{mebibytes:,.0f} MiB" if mebibytes < 1000 else f"{mebibytes / 1024:.1f} GiB"


def state_counts(stages: list[StageView]) -> str:
    """Return the number of stages in each state, such as "22 done, 1 failed"."""
    counts = {state: sum(stage.state == state for stage in stages) for state in STATES}
    return ", ".join(f"{count} {state}" for state, count in counts.items() if count)


DURATION_BINS = 24
"""Number of bins of the histogram of durations."""


class Utterance(NamedTuple):
    """An utterance of a manifest."""

    seconds: float
    speaker: str
    text: str
    line: int
    """Offset of its line in the file, in bytes."""
    snr: float | None = None
    """Signal-to-noise ratio in dB, if the manifest has it (`custom.snr_db`)."""
    has_audio: bool = True
    """Whether its recording is audio, not an archive of Kaldi's features."""


@dataclass(frozen=True)
class Split:
    """The utterances of a split, without those that the check excluded."""

    name: str
    path: Path
    utterances: Mapping[str, Utterance]
    """The utterances by id."""
    excluded: int
    """Number of utterances that the check excluded."""

    @property
    def hours(self) -> float:
        """Hours of audio."""
        return sum(utterance.seconds for utterance in self.utterances.values()) / 3600


def read_splits(run: RunFolder) -> list[Split]:
    """Return the splits: training, tuning and test splits in this order, then any others."""
    # A recipe writes what each split is for; without that file the splits are ordered by name.
    purposes = run.json("data/splits.json")
    purposes = purposes if isinstance(purposes, dict) else {}
    named = [purposes.get("train", ""), *purposes.get("tune", []), *purposes.get("test", [])]
    paths = {path.stem: path for path in run.find("data/*.jsonl")}
    order = [name for name in named if name in paths]
    order += sorted(paths.keys() - set(order))
    return [_read_split(run, name, paths[name]) for name in order]


def _read_split(run: RunFolder, name: str, path: Path) -> Split:
    """Read the utterances of a manifest that are not excluded."""
    exclusions = run.root / "check/excluded.tsv"
    out: set[tuple[str, int]] = set()
    try:
        out = read_exclusions(exclusions, name) if exclusions.exists() else out
    except DAMAGE as error:
        run.note(exclusions, error)
    # Exclusions name an id and which of its copies: a duplicate id excludes one of several lines.
    copies: Counter[str] = Counter()
    utterances, excluded = {}, 0
    for id, utterance in _manifest_utterances(run, path):
        copies[id] += 1
        if (id, copies[id]) in out:
            excluded += 1
        else:
            utterances[id] = utterance
    return Split(name, path, utterances, excluded)


def _manifest_utterances(run: RunFolder, path: Path) -> Iterator[tuple[str, Utterance]]:
    """Yield the utterances of a manifest, parsed as JSON: lhotse takes ten times as long."""
    start = 0
    with open(regular(path), "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                cut = json.loads(line)
                supervision = cut["supervisions"][0]
                text, speaker = supervision.get("text") or "", str(supervision.get("speaker") or "")
                seconds, custom = _finite_duration(cut["duration"]), cut.get("custom")
                has_audio = not (isinstance(custom, dict) and FEATURE_MATRIX in custom)
                utterance = Utterance(seconds, speaker, text, start, _snr_db(custom), has_audio)
                yield str(cut["id"]), utterance
            except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
                run.note(path, f"line {number}: {error}")
            start += len(line)


def _finite_duration(value: Any) -> float:
    """Return a duration as a number; raise a ValueError if it is not finite."""
    if not math.isfinite(number := float(value)):
        raise ValueError(f"a duration of {value}")
    return number


def _snr_db(custom: Any) -> float | None:
    """Return the signal-to-noise ratio in a cut's custom fields, if there is one."""
    snr = custom.get("snr_db") if isinstance(custom, dict) else None
    return float(snr) if isinstance(snr, (int, float)) and math.isfinite(snr) else None


def split_table(run: RunFolder, splits: Sequence[Split]) -> Table:
    """Return the table of split sizes, with the OOV words that the check has counted."""
    report = run.json("check/report.json") or {}
    checked = {row["split"]: row for row in report.get("splits", []) if "split" in row}
    columns = ("utterances", "excluded", "speakers", "hours", "words", "distinct words", "OOV")
    rows = []
    for split in splits:
        texts = [utterance.text.split() for utterance in split.utterances.values()]
        row = checked.get(split.name, {})
        tokens, oov = row.get("tokens") or 0, row.get("oov_tokens")
        share = "" if oov is None or not tokens else f"{100 * oov / tokens:.2f} %"
        rows.append(
            TableRow(
                [
                    Cell(split.name),
                    Cell(f"{len(split.utterances):,}"),
                    Cell(f"{split.excluded:,}"),
                    Cell(f"{len({u.speaker for u in split.utterances.values()}):,}"),
                    Cell(f"{split.hours:,.2f}"),
                    Cell(f"{sum(map(len, texts)):,}"),
                    Cell(f"{len({word for words in texts for word in words}):,}"),
                    Cell("-" if oov is None else f"{oov:,}", share),
                ]
            )
        )
    note = (
        "Excluded utterances are not counted, except in OOV. OOV counts the words in all "
        "transcripts that were not in the lexicon when the data were checked."
    )
    return Table("Splits", [Column("split"), *map(Column, columns)], rows, note)


def duration_figures(splits: Sequence[Split]) -> Markup:
    """Return a histogram of durations per split that has audio."""
    return side_by_side(_duration_histogram(split) for split in splits if split.hours)


def _duration_histogram(split: Split) -> Markup:
    """Return a histogram of the durations in a split."""
    seconds = np.array([u.seconds for u in split.utterances.values()])
    # [24] utterances and [25] limits in seconds.
    counts, edges = np.histogram(
        seconds, bins=DURATION_BINS, range=(0.0, float(seconds.max()) or 1.0)
    )
    drawings = [
        (kind, histogram_svg(counts, edges, width, f"Durations of {split.name}"))
        for kind, width in (("wide", HALF[0]), ("narrow", NARROW[0]))
    ]
    caption = (
        f"Durations: shortest {seconds.min():.1f} s, median {np.median(seconds):.1f} s, longest "
        f"{seconds.max():.1f} s; {split.hours:.2f} h in total."
    )
    return macros("parts.html").figure(split.name, drawings, caption=caption)


def language_tables(run: RunFolder) -> Markup:
    """Return vocabulary, phones and perplexities as HTML."""
    parts = [_vocabulary(run), _perplexities(run)]
    return side_by_side(parts) if all(parts) else joined(parts)


def _vocabulary(run: RunFolder) -> Markup:
    """Return a table of the sizes of vocabulary and lexicon."""
    sizes: dict[str, Any] = {}
    lang = run.json("lang/report.json")
    if isinstance(lang, dict):
        labels = {
            "words": "words of the vocabulary",
            "pronunciations": "pronunciations",
            "guessed": "pronunciations from G2P",
            "not_guessed": "words without a pronunciation",
            "phones": "phones",
        }
        sizes |= {labels[name]: lang[name] for name in labels if name in lang}
    units = run.json("units/units.json")
    if isinstance(units, dict) and isinstance(units.get("symbols"), list):
        sizes["output units"] = len(units["symbols"])
    words = run.text("words.txt")
    if words is not None:
        sizes["words of the dictionary"] = len(words.split())
    for folder in ("lm", "rescoring"):
        orders = (run.json(f"{folder}/report.json") or {}).get("ngrams") or []
        for order, number in enumerate(orders, 1):
            sizes[f"{folder}: {order}-grams"] = number
    if not sizes:
        return Markup("")
    rows = [TableRow([Cell(name), Cell(f"{number:,}")]) for name, number in sizes.items()]
    return Table("Vocabulary and n-grams", [Column(""), Column("")], rows).html()


def _perplexities(run: RunFolder) -> Markup:
    """Return a table of the language models' perplexities."""
    rows = []
    for folder in ("lm", "rescoring"):
        for row in run.table(f"{folder}/perplexity.tsv"):
            share = f"{100 * float(row['oov_rate']):.2f} %"
            rows.append(
                TableRow(
                    [Cell(folder), Cell(row["split"]), Cell(row["ppl"]), Cell(row["oov"], share)]
                )
            )
    columns = [Column("model"), Column("split", text=True), Column("perplexity"), Column("OOV")]
    return Table("Perplexities", columns, rows).html() if rows else Markup("")


MAX_FINDINGS = 12
"""Largest number of findings of one kind that are listed."""
SEVERITIES = ("error", "warning", "note")


def finding_list(run: RunFolder) -> Markup:
    """Return the findings of the check with remedies, the most severe first."""
    report = run.json("check/report.json")
    if not isinstance(report, dict):
        return Markup("")
    kinds = report.get("kinds", {})
    findings: dict[str, list[Mapping[str, Any]]] = {}
    for finding in report.get("findings", []):
        findings.setdefault(finding["kind"], []).append(finding)
    if not findings:
        return macros("run.html").no_findings()
    order = sorted(
        (kind for kind in kinds if kind in findings),
        key=lambda kind: (SEVERITIES.index(kinds[kind]["severity"]), -len(findings[kind])),
    )
    return joined(_finding(kinds[kind], findings[kind]) for kind in order)


def _finding(kind: Mapping[str, str], findings: Sequence[Mapping[str, Any]]) -> Markup:
    """Return the findings of one kind as HTML, with the number of excluded utterances.

    Args:
      kind: severity, title and fix, see `FindingKind`.
      findings: the findings; `excluded` says whether the utterance is left out of training, or of
        all splits.
    """
    return macros("run.html").finding(
        kind["severity"],
        kind["title"],
        kind["fix"],
        count=len(findings),
        excluded=sum(bool(finding.get("excluded")) for finding in findings),
        listed=[(f["split"], f["id"], f["detail"]) for f in findings[:MAX_FINDINGS]],
        hidden=len(findings) - MAX_FINDINGS,
    )


DECODE_PATTERNS = ("decode/*/*/text", "decode/*/*/*/text")


@dataclass(frozen=True)
class Decode:
    """One system's hypotheses of one split."""

    name: str
    """The folder below `decode/`, such as `lstm_ce` or `ctc/greedy`."""
    split: str
    score: Score
    folder: Path
    """The folder of its files."""

    @cached_property
    def by_id(self) -> Mapping[str, UtteranceScore]:
        """The scored utterances by id."""
        return {utterance.id: utterance for utterance in self.score.utterances}


def read_decodes(run: RunFolder, splits: Sequence[Split]) -> list[Decode]:
    """Read and score all hypotheses, in the order in which they were written.

    Utterances without a line from any system are not scored, as in the recipe's results.
    """
    # 1. Read the hypotheses of each system and split. Those of finished stages come first.
    splits_by_name = {split.name: split for split in splits}
    texts_by_decode: dict[tuple[str, str], tuple[Path, Mapping[str, str]]] = {}
    for path in (path for pattern in DECODE_PATTERNS for path in run.find(pattern)):
        key = run.name(path.parent.parent).removeprefix("decode/"), path.parent.name
        if key[1] in splits_by_name and key not in texts_by_decode:
            try:
                texts_by_decode[key] = path, read_transcripts(path, "text").texts
            except ToolkitError as error:
                run.note(path, error)
    # 2. Score them on the utterances that any system has decoded.
    decoded: dict[str, set[str]] = {name: set() for name in splits_by_name}
    for (_, split), (_, texts) in texts_by_decode.items():
        decoded[split] |= texts.keys()
    decodes = []
    for (name, split), (path, texts) in texts_by_decode.items():
        try:
            scored = _score_decode(splits_by_name[split], texts, decoded[split])
        except ToolkitError as error:
            run.note(path, error)
            continue
        # The time of writing gives the order of the systems.
        decodes.append((path.stat().st_mtime, Decode(name, split, scored, path.parent)))
    return [decode for _, decode in sorted(decodes, key=lambda item: item[0])]


def _score_decode(split: Split, hypotheses: Mapping[str, str], decoded: Collection[str]) -> Score:
    """Score hypotheses against the transcripts of the utterances that were decoded."""
    used = {name: u for name, u in split.utterances.items() if u.text and name in decoded}
    references = {name: utterance.text for name, utterance in used.items()}
    speakers = {name: utterance.speaker for name, utterance in used.items()}
    return score(references, hypotheses, speakers=speakers)


def worst(decode: Decode, number: int) -> Iterator[UtteranceScore]:
    """Yield the utterances with the most errors; ties go to the higher error rate."""
    wrong = [utterance for utterance in decode.score.utterances if utterance.errors]
    wrong.sort(key=lambda u: (-u.errors, -u.errors / max(1, u.ref_units), u.id))
    yield from wrong[:number]


@dataclass(frozen=True)
class Confusions:
    """Counts of word errors, the most frequent first, ties by name."""

    substitutions: Sequence[tuple[str, int]]
    """(`reference → hypothesis`, count)."""
    deletions: Sequence[tuple[str, int]]
    insertions: Sequence[tuple[str, int]]


def confusions(alignments: Iterable[Sequence[Pair]], number: int) -> Confusions:
    """Return the `number` most frequent errors of each kind in alignments of words or phones."""
    kinds: tuple[Counter[str], Counter[str], Counter[str]] = Counter(), Counter(), Counter()
    for pairs in alignments:
        for ref, hyp in pairs:
            if ref is None:
                kinds[2][hyp or ""] += 1
            elif hyp is None:
                kinds[1][ref] += 1
            elif ref != hyp:
                kinds[0][f"{ref} → {hyp}"] += 1
    ordered = [sorted(kind.items(), key=lambda item: (-item[1], item[0])) for kind in kinds]
    return Confusions(*(kind[:number] for kind in ordered))


def read_result_rows(run: RunFolder, stages: Sequence[StageView]) -> list[Result]:
    """Return the rows of `decode/*/rows.json`, in the order of the stages, and of `results.json`.

    `rows.json` exists before the recipe is finished, and is newer when a stage has run again;
    `results.json` has the error rates with unknown speakers.
    """
    output_names = [name for stage in stages if stage.marker for name in stage.marker.outputs]
    # Files of unfinished stages come last.
    order = {f"{name}/rows.json": n for n, name in enumerate(output_names)}
    paths = run.find("decode/*/rows.json")
    paths.sort(key=lambda path: order.get(run.name(path), len(order)))
    rows: dict[tuple[str, str, str], Result] = {}
    for path in [*paths, run.root / "results.json"]:
        try:
            for row in read_results(path):
                listed = rows.setdefault(row.key, row)
                # A row of results.json replaces the listed one if only the WER with unknown
                # speakers differs; if more differs, it comes from an older run.
                if replace(row, wer_unknown_speaker=None) == listed:
                    rows[row.key] = row
        except ResultsError as error:
            run.note(path, error)
    return list(rows.values())


def splits_of(rows: Sequence[Result]) -> list[str]:
    """Return the splits in the order of their rows."""
    return list(dict.fromkeys(row.split for row in rows))


def best_of(rows: Sequence[Result]) -> dict[str, Result]:
    """Return the row with the lowest WER of each split."""
    return {
        split: min((row for row in rows if row.split == split), key=lambda row: row.wer)
        for split in splits_of(rows)
    }


def compared_splits(rows: Sequence[Result]) -> list[str]:
    """Return the splits with several rows, or all splits if none has several."""
    every = splits_of(rows)
    return [s for s in every if sum(row.split == s for row in rows) > 1] or every


def colours_of(rows: Sequence[Result]) -> dict[str, int]:
    """Return the colour of each system, an index into the page's palette."""
    return {name: n for n, name in enumerate(dict.fromkeys(row.system for row in rows))}


def shapes_of(rows: Sequence[Result]) -> dict[str, str]:
    """Return the shape of the markers of each language model."""
    names = dict.fromkeys(row.lm for row in rows)
    return {name: SHAPES[n % len(SHAPES)] for n, name in enumerate(names)}


def gains_table(run: RunFolder) -> Markup:
    """Return the relative WER reductions of recipes that compare with a baseline (C33)."""
    gains_by_system = run.json("werr.json") or {}
    splits = list(
        dict.fromkeys(gain["split"] for gains in gains_by_system.values() for gain in gains)
    )
    rows = []
    for system, gains in gains_by_system.items():
        by_split = {gain["split"]: gain for gain in gains}
        cells = [_gain_cell(by_split.get(split, {})) for split in splits]
        rows.append(TableRow([Cell(system), *cells]))
    columns = [Column("system"), *map(Column, splits)]
    note = "In percent of the baseline's WER, with the 95 % interval of a paired bootstrap."
    return Table("Relative WER reduction", columns, rows, note).html() if rows else Markup("")


def _gain_cell(gain: Mapping[str, float | None]) -> Cell:
    """Return a cell with a relative reduction and its confidence interval."""
    if gain.get("werr") is None:
        return Cell("-")
    interval = "" if gain["low"] is None else f"{gain['low']:.1f} to {gain['high']:.1f}"
    return Cell(f"{gain['werr']:.1f}", interval)


def detail_table(rows: Sequence[Result]) -> Markup:
    """Return a table of the kinds of errors and the cost of decoding, collapsed."""
    heads = ("WER %", "insertions", "deletions", "substitutions", "words", "real-time factor")
    columns = [Column("system"), Column("LM", text=True), Column("split", text=True)]
    table = [
        TableRow(
            [
                Cell(row.system),
                Cell(row.lm),
                Cell(row.split),
                Cell(f"{row.wer:.2f}"),
                Cell(f"{row.insertions:,}"),
                Cell(f"{row.deletions:,}"),
                Cell(f"{row.substitutions:,}"),
                Cell(f"{row.ref_words:,}"),
                Cell(f"{row.rtf:.4f}"),
            ]
        )
        for row in rows
    ]
    note = "Real-time factor: CPU time of decoding per second of audio."
    html = Table("Kinds of errors, cost", [*columns, *map(Column, heads)], table, note).html()
    return folded("Kinds of errors and cost of decoding", html)


def interval_figures(rows: Sequence[Result]) -> Markup:
    """Return, for each split, a figure of the systems' WERs with confidence intervals.

    Each system has a colour, each language model a shape. Splits with a single row are left out,
    unless there are no others.
    """
    colours, shapes = colours_of(rows), shapes_of(rows)
    figures = []
    for split in compared_splits(rows):
        intervals = [
            Interval(
                f"{row.system} {row.lm}",
                row.wer,
                row.wer_low,
                row.wer_high,
                colours[row.system],
                shapes[row.lm],
                f"{row.wer:.2f} %" + (f" ({row.interval})" if row.interval else ""),
            )
            for row in rows
            if row.split == split
        ]
        label = f"Error rates of {len(intervals)} systems"
        drawings = [
            (kind, interval_svg(intervals, width, label))
            for kind, width in (("wide", HALF[0]), ("narrow", NARROW[0]))
        ]
        title = f"{split}: WER in % with 95 % interval"
        figures.append(macros("parts.html").figure(title, drawings))
    return side_by_side(figures)


def confidence_table(run: RunFolder) -> Markup:
    """Return a table of the calibration of word confidences."""
    rows = [
        TableRow([Cell(path.parent.name), Cell(row["split"])] + [Cell(row[name]) for name in heads])
        for path in run.find("decode/*/confidence.tsv")
        for row in run.table(path)
        for heads in [("words", "correct", "ece", "nce", "calibrated_on")]
    ]
    names = ("words", "correct", "ECE", "NCE", "calibrated on")
    columns = [Column("system"), Column("split", text=True), *map(Column, names)]
    note = "ECE: expected calibration error, 0 is best; NCE: normalised cross entropy, 1 is best."
    return Table("Word confidences", columns, rows, note).html() if rows else Markup("")
