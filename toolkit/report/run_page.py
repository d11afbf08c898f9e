"""The report of a run, and the comparison of two runs: one HTML page each."""

import html
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from typing import Any

from markupsafe import Markup

from toolkit.config.fields import NonNegativeInt, Positive, Settings
from toolkit.report.error_analysis import (
    MAX_WORDS,
    SplitErrors,
    compare_decodes,
    factor_figures,
    format_p_value,
    marked_alignment,
    overview,
    pairwise_tests_table,
    phone_overview,
    worst_alignments,
    worst_utterances,
)
from toolkit.report.media import Clip, read_clip
from toolkit.report.pages import (
    Budget,
    Cell,
    Column,
    Page,
    Section,
    Table,
    TableRow,
    joined,
    macros,
)
from toolkit.report.run_data import (
    Decode,
    Split,
    StageView,
    best_of,
    colours_of,
    compared_splits,
    confidence_table,
    detail_table,
    duration_figures,
    finding_list,
    gains_table,
    interval_figures,
    language_tables,
    read_decodes,
    read_result_rows,
    read_splits,
    read_stages,
    split_table,
    splits_of,
    stage_table,
    state_counts,
)
from toolkit.report.run_folder import DAMAGE, RunFolder
from toolkit.report.training_curves import (
    History,
    beam_figures,
    gmm_figures,
    network_figures,
    read_histories,
    run_log_figures,
    training_progress,
)
from toolkit.score.alignment import Pair, UtteranceScore
from toolkit.score.compare import compare
from toolkit.score.results import Result
from toolkit.score.wer import ScoreError
from toolkit.stages.log import duration
from toolkit.stages.marker import CodeVersion
from toolkit.storage.files import write_atomically


@dataclass(frozen=True)
class ReportConfig(Settings):
    """How much the page shows."""

    utterances: NonNegativeInt = 6
    """Number of worst utterances shown for each split, with spectrogram and audio."""
    max_mb: Positive = 8.0
    """Largest size of the page in megabytes (10^6 bytes); audio players are left out first, then
    alignments."""


CHOSEN_WEIGHT_FILES = ("tuned.json", "weights.json")
"""Files that hold the chosen weights."""


def weight_grids(run: RunFolder) -> Markup:
    """Return each system's development WER by decoding weights, such as the acoustic scale."""
    paths = run.find("decode/*/grid.tsv") + run.find("decode/*/*/grid.tsv")
    paths.sort(key=lambda path: path.stat().st_mtime)
    grids = [_weight_grid(run, path) for path in paths]
    return macros("run.html").grids(grids) if any(grids) else Markup("")


def _weight_grid(run: RunFolder, path: Path) -> Markup:
    """Return a table by the first two weights; a cell is the lowest WER over any other weights."""
    rows = run.table(path)
    if not rows or "wer" not in rows[0]:
        return Markup("")
    row_weight, column_weight = list(rows[0])[:2]
    first_result = next(n for n, name in enumerate(rows[0]) if name in ("errors", "words", "wer"))
    further = list(rows[0])[2:first_result]
    lowest: dict[tuple[str, str], float] = {}
    for row in rows:
        key = row[row_weight], row[column_weight]
        lowest[key] = min(lowest.get(key, float("inf")), float(row["wer"]))
    tuned = _chosen_weights(run, path.parent)
    low, high = min(lowest.values()), max(lowest.values())
    columns = _sorted_values([row[column_weight] for row in rows])

    def cell(row_value: str, column_value: str) -> tuple[float, float, bool] | None:
        """Return WER, shade in percent and whether these are the chosen weights."""
        wer = lowest.get((row_value, column_value))
        if wer is None:
            return None
        chosen = _is_same_value(row_value, tuned.get(row_weight)) and _is_same_value(
            column_value, tuned.get(column_weight)
        )
        return wer, 100 * (wer - low) / ((high - low) or 1.0), chosen

    return macros("run.html").weight_grid(
        run.name(path.parent).removeprefix("decode/"),
        row_weight.replace("_", " "),
        column_weight.replace("_", " "),
        columns,
        [
            (value, [cell(value, column) for column in columns])
            for value in _sorted_values([row[row_weight] for row in rows])
        ],
        ", ".join(name.replace("_", " ") for name in further),
    )


def _sorted_values(values: Sequence[str]) -> list[str]:
    """Return the different values, in rising order if all of them are numbers."""
    different = list(dict.fromkeys(values))
    try:
        return sorted(different, key=float)
    except ValueError:
        return different


def _chosen_weights(run: RunFolder, folder: Path) -> Mapping[str, object]:
    """Return the chosen weights by name; those of a combination by system."""
    for name in CHOSEN_WEIGHT_FILES:
        tuned = run.json(folder / name)
        if isinstance(tuned, dict):
            weights = tuned.get("weights")
            return tuned | weights if isinstance(weights, dict) else tuned
    return {}


def _is_same_value(text: str, value: object) -> bool:
    """Return whether the text of a weight in a table stands for this value."""
    if isinstance(value, (int, float)):
        try:
            return abs(float(text) - value) < 1e-6
        except ValueError:
            return False
    return text == value


BROWSER_FIELDS = ("id", "speaker", "seconds", "snr", "errors", "words", "pieces")
"""The fields of a row, in this order."""
COMPACT_JSON: dict[str, Any] = {"ensure_ascii": False, "separators": (",", ":")}


def utterance_browser(splits: Sequence[SplitErrors], budget: Budget) -> Markup:
    """Return the browser of all utterances, as recognised by the best system of each split.

    The rows are JSON in hidden elements, as text; they take at most half of the budget. If a split
    does not fit, its utterances with the most errors are kept.
    """
    # Each split may use an equal share of the bytes that the splits before it have left.
    max_bytes, rows = max(0, budget.remaining // 2), Markup("")
    for number, split in enumerate(splits):
        rows += _browser_rows(split, (max_bytes - _num_bytes(rows)) // (len(splits) - number))
    return budget.take(macros("run.html").browser([rows])) if rows else Markup("")


def _browser_rows(errors: SplitErrors, max_bytes: int) -> Markup:
    """Return the rows of a split, in at most `max_bytes`; empty if none fits."""
    utterances = errors.shown.score.utterances
    chosen: Sequence[UtteranceScore] = utterances
    while chosen:
        listed = ",".join(json.dumps(_browser_row(errors, u), **COMPACT_JSON) for u in chosen)
        rows = macros("run.html").browser_rows(
            errors.split.name,
            f"{errors.split.name}, {errors.shown.name}",
            len(utterances) - len(chosen),
            # Quotation marks need no escape outside of attributes, and JSON has many.
            Markup(html.escape(f"[{listed}]", quote=False)),
        )
        if (size := _num_bytes(rows)) <= max_bytes:
            return rows
        # Try again with fewer utterances, in proportion to the bytes; those with most errors stay.
        if len(chosen) == len(utterances):
            chosen = sorted(utterances, key=lambda utterance: -utterance.errors)
        chosen = chosen[: min(len(chosen) - 1, len(chosen) * max_bytes // size)]
    return Markup("")


def _num_bytes(text: str) -> int:
    """Return the size of a text in UTF-8."""
    return len(text.encode("utf-8", "replace"))


def _browser_row(errors: SplitErrors, utterance: UtteranceScore) -> list[object]:
    """Return the row of an utterance, with the fields of `BROWSER_FIELDS`."""
    entry = errors.split.utterances[utterance.id]
    return [
        utterance.id,
        entry.speaker,
        round(entry.seconds, 2),
        entry.snr,
        utterance.errors,
        utterance.ref_units,
        compact_alignment(utterance.pairs),
    ]


def compact_alignment(pairs: Sequence[Pair]) -> list[str | list[str | None]]:
    """Return an alignment in few characters.

    Runs of correct words are a string each; errors are (reference, hypothesis), None for a gap.
    Long alignments end after `MAX_WORDS`.
    """
    pieces: list[str | list[str | None]] = []
    for is_correct, group in groupby(pairs[:MAX_WORDS], key=lambda pair: pair[0] == pair[1]):
        if is_correct:
            pieces.append(" ".join(ref for ref, _ in group if ref is not None))
        else:
            pieces += [list(pair) for pair in group]
    return pieces + (["…"] if len(pairs) > MAX_WORDS else [])


MAX_LOG_LINES = 60
MAX_SETTINGS = 30_000
"""Largest number of characters of the settings that are shown."""


def commands_table(stages: Sequence[StageView]) -> Table | None:
    """Return a table of commands, commits and versions, with the stages that were run with them."""
    finished = [(_command_of(stage), stage.number) for stage in stages if stage.marker]
    if not finished:
        return None
    stages_by_command: dict[tuple[str, str, str], list[int]] = {}
    for made_by, number in finished:
        stages_by_command.setdefault(made_by, []).append(number)
    rows = [
        TableRow([Cell(_number_ranges(numbers)), Cell(command), Cell(commit), Cell(versions)])
        for (command, commit, versions), numbers in stages_by_command.items()
    ]
    columns = [Column("stages"), *(Column(n, text=True) for n in ("command", "commit", "versions"))]
    return Table("Commands and versions", columns, rows)


def _command_of(stage: StageView) -> tuple[str, str, str]:
    """Return the command of a stage, and the commits and versions that it ran with."""
    marker = stage.marker
    assert marker is not None
    commits = [_commit_text(attempt.code) for attempt in marker.provenance.attempts]
    versions = ", ".join(f"{n} {v}" for n, v in marker.code.versions.items() if v)
    return marker.command, ", ".join(dict.fromkeys(commits)), versions


def _commit_text(code: CodeVersion) -> str:
    """Return a commit, with a note if files were changed."""
    commit = (code.commit or "unknown")[:12]
    return commit + (" with local changes" if code.dirty else "")


def _number_ranges(numbers: Sequence[int]) -> str:
    """Format numbers as ranges, such as `1-3, 5`."""
    # Consecutive numbers have the same difference from their positions.
    runs = [
        [number for _, number in run]
        for _, run in groupby(enumerate(numbers), key=lambda item: item[1] - item[0])
    ]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def settings_read(stages: Sequence[StageView]) -> Markup:
    """Return the settings that the stages have read, collapsed."""
    sections: dict[str, Any] = {}
    for stage in stages:
        sections |= stage.marker.provenance.parameters if stage.marker else {}
    text = json.dumps(sections, indent=1, ensure_ascii=False)
    if len(text) > MAX_SETTINGS:
        text = text[:MAX_SETTINGS] + "\n..."
    return _folded_text("Settings that the stages have read", text) if sections else Markup("")


def log_tail(run: RunFolder) -> Markup:
    """Return the last lines of the log, collapsed."""
    lines = (run.text("log.txt") or "").splitlines()[-MAX_LOG_LINES:]
    title = f"The last {len(lines)} lines of log.txt"
    return _folded_text(title, "\n".join(lines)) if lines else Markup("")


def problem_list(run: RunFolder) -> Markup:
    """Return the list of files that could not be read, collapsed."""
    lines = "\n".join(dict.fromkeys(run.problems))
    title = f"{len(run.problems)} files or parts could not be read"
    return _folded_text(title, lines) if lines else Markup("")


def _folded_text(title: str, text: str) -> Markup:
    """Return a text that is collapsed below its title."""
    return macros("parts.html").folded_text(title, text)


STYLES, SCRIPTS = ("run_page.css",), ("run_page.js", "browser.js")
MAX_HEADLINE_SPLITS = 4
"""Number of splits whose error rates are at the head of the page: those with the most words."""
RESERVED_BYTES = 20_000
"""Bytes of the page's limit that are reserved for headings and the footer."""


def write_report(root: Path, out: Path, config: ReportConfig | None = None) -> list[str]:
    """Write the page of the run in the directory `root` to the file `out`.

    Returns:
      The files that could not be read, with reasons; the page lists them too.

    Raises:
      ReportError: `root` is not a run directory.
    """
    run = RunFolder.open(root)
    write_atomically(out, _RunPage(run, config or ReportConfig()).page().html())
    return list(dict.fromkeys(run.problems))


class _RunPage:
    """The sections of a run's page."""

    def __init__(self, run: RunFolder, config: ReportConfig) -> None:
        self._run, self._config = run, config
        self._stages: list[StageView] = run.part(lambda: read_stages(run), [])
        self._splits: list[Split] = run.part(lambda: read_splits(run), [])
        self._rows: list[Result] = run.part(lambda: read_result_rows(run, self._stages), [])

    def page(self) -> Page:
        """Assemble the page from its sections."""
        page = Page(
            self._title(),
            self._run.part(self._lead, ""),
            styles=STYLES,
            scripts=SCRIPTS,
        )
        for section in (
            self._results(),
            self._stage_section(),
            self._data(),
            self._check(),
            self._curves(),
            self._tuning(),
            self._confusions(),
            self._factors(),
        ):
            page.add(section)
        end = self._provenance()
        # Required parts are rendered first; players and rows share what the size limit leaves.
        used = len(page.html().encode()) + sum(len(part.encode()) for part in end.parts)
        budget = Budget(round(1e6 * self._config.max_mb) - used - RESERVED_BYTES)
        all_utterances = self._browser(budget)  # first, as it has half of the budget at most
        page.add(self._utterances(budget))
        page.add(all_utterances)
        page.add(self._alignments(budget))
        page.add(self._provenance())  # again, since audio may have turned out to be unreadable
        page.footer = self._footer(budget)
        return page

    def _title(self) -> str:
        """Return the recipe and the profile of the run, or else the name of its folder."""
        last_command = self._run.json("stages/last_command.json")
        names: list[Any] = []
        if isinstance(last_command, dict):
            names = [last_command.get("recipe"), last_command.get("profile")]
        return " ".join(str(name) for name in names if name) or self._run.root.name

    def _lead(self) -> str:
        """Return the summary at the head of the page: stages, total time, lowest error rates."""
        seconds = sum(stage.seconds for stage in self._stages)
        lead = [
            f"Stages: {state_counts(self._stages)}, {duration(seconds)} in total."
            if seconds
            else ""
        ]
        best, compared = best_of(self._rows), compared_splits(self._rows)
        largest = sorted(compared, key=lambda split: -best[split].ref_words)[:MAX_HEADLINE_SPLITS]
        for split in filter(largest.__contains__, compared):
            row = best[split]
            interval = f" ({row.wer_low:.2f} to {row.wer_high:.2f})" if row.interval else ""
            lead.append(
                f"Lowest WER on {split}: {row.wer:.2f} %{interval} by {row.system}, {row.lm}."
            )
        return " ".join(filter(None, lead)) or "No stage is finished yet."

    def _footer(self, budget: Budget) -> str:
        left_out = f"; {budget.refused} players or alignments left out" if budget.refused else ""
        return (
            f"Made by toolkit report from {self._run.root.name}; limited to "
            f"{self._config.max_mb:g} MB{left_out}."
        )

    def _results(self) -> Section:
        rows = self._rows
        return Section(
            "results",
            "Error rates",
            parts=self._parts(
                lambda: interval_figures(rows) if rows else Markup(""),
                lambda: error_table(rows).html() if rows else Markup(""),
                *(lambda errors=errors: pairwise_tests_table(errors) for errors in self._errors),
                lambda: gains_table(self._run),
                lambda: confidence_table(self._run),
                lambda: detail_table(rows) if rows else Markup(""),
            ),
        )

    def _stage_section(self) -> Section:
        return Section(
            "stages",
            "Stages",
            "The states come from the stages' markers (stages/NN.json). Stages that were never "
            "started are not shown. The recipe's --list also compares settings and file contents.",
            self._parts(lambda: stage_table(self._stages) if self._stages else Markup("")),
        )

    def _data(self) -> Section:
        return Section(
            "data",
            "Data",
            parts=self._parts(
                lambda: split_table(self._run, self._splits).html() if self._splits else Markup(""),
                lambda: duration_figures(self._splits) if self._splits else Markup(""),
                lambda: language_tables(self._run),
            ),
        )

    def _check(self) -> Section:
        return Section(
            "check",
            "Findings of the data check",
            parts=self._parts(lambda: finding_list(self._run)),
        )

    def _curves(self) -> Section:
        histories: list[History] = self._run.part(lambda: read_histories(self._run), [])
        return Section(
            "curves",
            "Learning curves",
            parts=self._parts(
                lambda: training_progress(self._run, histories),
                lambda: network_figures(histories),
                lambda: run_log_figures(self._run),
                lambda: gmm_figures(histories),
            ),
        )

    def _tuning(self) -> Section:
        return Section(
            "tuning",
            "Tuning",
            "WER in % on the development splits for all weights tried. The chosen weights have a "
            "border.",
            self._parts(lambda: weight_grids(self._run), lambda: beam_figures(self._run)),
        )

    @cached_property
    def _errors(self) -> list[SplitErrors]:
        """The errors of the splits that were decoded, in the order of the splits."""
        decodes: list[Decode] = self._run.part(lambda: read_decodes(self._run, self._splits), [])
        decodes_by_split: dict[str, list[Decode]] = {}
        for decode in decodes:
            decodes_by_split.setdefault(decode.split, []).append(decode)
        return [
            SplitErrors(s, decodes_by_split[s.name])
            for s in self._splits
            if s.name in decodes_by_split
        ]

    def _confusions(self) -> Section:
        return Section(
            "confusions",
            "Confusions",
            "For each split, the most frequent errors of the system with the fewest errors.",
            self._parts(
                lambda: joined(map(overview, self._errors)),
                *(lambda e=errors: phone_overview(self._run, e) for errors in self._errors),
            ),
        )

    def _factors(self) -> Section:
        return Section(
            "factors",
            "Errors by condition",
            "Word error rates of groups of utterances by duration, speaking rate and, if the "
            "manifest contains it, signal-to-noise ratio.",
            self._parts(*(lambda e=errors: factor_figures(e) for errors in self._errors)),
        )

    def _browser(self, budget: Budget) -> Section:
        return Section(
            "browse",
            "All utterances",
            "Click a heading to sort the table. Links lead to utterances with audio further up.",
            self._parts(lambda: utterance_browser(self._errors, budget)),
        )

    def _utterances(self, budget: Budget) -> Section:
        number = self._config.utterances
        parts = self._parts(
            *(
                lambda errors=errors, place=place: worst_utterances(
                    self._run, errors, number, budget, self._clip, f"worst-{place}"
                )
                for place, errors in enumerate(self._errors, 1)
            )
        )
        return Section(
            "utterances",
            "Worst utterances",
            "For each split, the utterances with the most errors, from the system with the fewest "
            "errors.",
            [macros("run.html").alignment_key(), *parts] if any(parts) else [],
        )

    def _alignments(self, budget: Budget) -> Section:
        number = self._config.utterances
        return Section(
            "alignments",
            "Alignments",
            "Training utterances that fit the models worst, with their aligned words and phones. "
            "Transcripts that differ from the speech show up here.",
            self._parts(
                lambda: worst_alignments(self._run, self._splits, number, budget, self._clip)
            ),
        )

    def _clip(self, split: Split, utterance: str) -> Clip | None:
        """Return audio and spectrogram of an utterance; None if it has no readable audio."""
        if not split.utterances[utterance].has_audio:
            self._run.note(split.path, "no players: the corpus has features but no audio")
            return None
        try:
            return read_clip(split.path, split.utterances[utterance].line)
        except DAMAGE as error:
            self._run.note(split.path, f"audio of {utterance}: {error}")
            return None

    def _provenance(self) -> Section:
        table: Table | None = self._run.part(lambda: commands_table(self._stages), None)
        return Section(
            "provenance",
            "Provenance",
            parts=self._parts(
                lambda: table.html() if table else Markup(""),
                lambda: settings_read(self._stages),
                lambda: log_tail(self._run),
                lambda: problem_list(self._run),
            ),
        )

    def _parts(self, *parts: Callable[[], Markup]) -> Sequence[Markup]:
        """Make the parts of a section; damaged ones are replaced by a notice."""
        return [self._run.part(part, macros("run.html").damaged()) for part in parts]


SETTINGS_LEAD = "Only settings that the stages have read are compared."
MAX_CHANGED = 40
"""Largest number of utterances of a split that are listed as better, and also as worse."""
MAX_VALUE_CHARACTERS = 200
"""Largest number of characters of a setting that are shown."""

Decodes = Mapping[tuple[str, str], Decode]


def write_comparison(first: Path, second: Path, out: Path) -> list[str]:
    """Write the page that compares the runs in two directories to the file `out`.

    Returns:
      The files that could not be read, with reasons; the page lists them too.

    Raises:
      ReportError: one of the two is not a run directory.
    """
    runs = RunFolder.open(first), RunFolder.open(second)
    names = _distinct_names(runs)
    stages: list[list[StageView]] = [run.part(partial(read_stages, run), []) for run in runs]
    decodes: list[Decodes] = [run.part(partial(_decodes_by_name, run), {}) for run in runs]
    page = Page(
        f"{names[0]} and {names[1]}",
        f"A is {names[0]}, B is {names[1]}. Differences are B minus A: below 0, B is better.",
        styles=STYLES,
        footer="Made by toolkit report.",
    )
    page.add(Section("results", "Error rates", parts=[_comparison_table(*decodes)]))
    differing = runs[1].part(lambda: _settings_table(*stages), Markup(""))
    page.add(Section("settings", "Settings that differ", SETTINGS_LEAD, [differing]))
    page.add(Section("utterances", "Utterances that changed", parts=_changed_by_split(*decodes)))
    commands = [
        joined([macros("parts.html").subtitle(name), table.html()])
        for name, run, run_stages in zip("AB", runs, stages, strict=True)
        if (table := run.part(partial(commands_table, run_stages), None))
    ]
    page.add(Section("provenance", "Provenance", parts=[*commands, *map(problem_list, runs)]))
    write_atomically(out, page.html())
    return list(dict.fromkeys(problem for run in runs for problem in run.problems))


def _distinct_names(runs: Sequence[RunFolder]) -> tuple[str, str]:
    """Return the shortest ends of the directories' paths that differ."""
    first, second = (run.root.parts for run in runs)
    depths = range(1, max(len(first), len(second)) + 1)
    # As few folders of the paths as make the names differ.
    depth = next((n for n in depths if first[-n:] != second[-n:]), 1)
    return "/".join(first[-depth:]), "/".join(second[-depth:])


def error_table(rows: Sequence[Result]) -> Table:
    """Return a table of WER with interval and CER, a row per system and language model."""
    splits, best = splits_of(rows), best_of(rows)
    rows_by_key = {row.key: row for row in rows}
    names = list(dict.fromkeys((row.system, row.lm) for row in rows))
    colours = colours_of(rows)
    alone = {row.split for row in rows if row.unknown_speaker}
    table = []
    for system, lm in names:
        cells = [Cell(system, lm), Cell(lm)]
        for split in splits:
            row = rows_by_key.get((system, split, lm))
            if row is None:
                cells += [Cell("-")] * (2 + (split in alone))
                continue
            is_best = row.wer == best[split].wer
            cells.append(Cell(f"{row.wer:.2f}", row.interval, best=is_best))
            if split in alone:
                cells.append(Cell(row.unknown_speaker or "-"))
            cells.append(Cell(f"{row.cer:.2f}"))
        table.append(TableRow(cells, colours[system]))
    columns = [Column("system"), Column("LM", text=True, extra=True)]
    for split in splits:
        columns.append(Column("WER %, 95 % interval", split))
        if split in alone:
            columns.append(Column("WER %, speaker unknown", split))
        columns.append(Column("CER %", split, extra=True))
    note = (
        "Bold: the lowest WER of each split. Error rates of splits that weights were tuned on are "
        "optimistic."
    )
    if alone:
        note += " Speaker unknown: every utterance is recognised alone, with the system's bundle."
    return Table("Error rates", columns, table, note)


def _decodes_by_name(run: RunFolder) -> Decodes:
    """Return the decodes by name and split."""
    decodes = read_decodes(run, read_splits(run))
    return {(decode.name, decode.split): decode for decode in decodes}


def _comparison_table(first: Decodes, second: Decodes) -> Markup:
    """Return a table of the WER of both runs, by system and split."""
    keys = sorted({**first, **second}, key=lambda key: (key[1], key[0]))
    rows = [
        TableRow([Cell(name), Cell(split), *_error_cells(first.get(key), second.get(key))])
        for key in keys
        for name, split in [key]
    ]
    heads = ("A: WER %", "B: WER %", "difference", "p", "better, worse")
    columns = [Column("system"), Column("split", text=True), *map(Column, heads)]
    note = (
        "The difference is shown with its 95 % interval. It is bold if p is below 0.05 in NIST's "
        "matched pairs test (MAPSSWE) or, for few segments, in an exact permutation test. The last "
        "column counts the utterances with fewer and with more errors in B. Only decodes of the "
        "same utterances with the same references are compared."
    )
    if not rows:
        return Markup("")
    return Table("Word error rates", columns, rows, note, stacked=True).html()


def _error_cells(first: Decode | None, second: Decode | None) -> list[Cell]:
    """Return both error rates, their difference, its p-value and the changed utterances."""
    rates = [Cell(f"{decode.score.percent:.2f}" if decode else "-") for decode in (first, second)]
    if first is None or second is None:
        return [*rates, Cell("-"), Cell("-"), Cell("-")]
    try:
        comparison = compare(first.score, second.score)
    except ScoreError:
        return [*rates, Cell("other references"), Cell("-"), Cell("-")]
    # Two tests: the interval is by bootstrap, the p-value by matched pairs.
    test = compare_decodes(first, second)
    interval = (
        f"{comparison.interval.low:+.2f} to {comparison.interval.high:+.2f}"
        if comparison.interval
        else ""
    )
    better, _, worse = comparison.better_equal_worse
    return [
        *rates,
        Cell(f"{comparison.difference:+.2f}", interval, best=test.significant),
        Cell(format_p_value(test.p_value), f"{test.test.segments:,} segments"),
        Cell(f"{better:,}, {worse:,}"),
    ]


def _settings_table(first: Sequence[StageView], second: Sequence[StageView]) -> Markup:
    """Return a table of the settings that differ between two runs."""
    sides = _flatten(_merged_parameters(first)), _flatten(_merged_parameters(second))
    names = [name for name in sorted({**sides[0], **sides[1]}) if _is_different(name, *sides)]
    rows = [
        TableRow(
            [
                Cell(name),
                *map(Cell, _shorten_values(*(side.get(name, "not read") for side in sides))),
            ]
        )
        for name in names
    ]
    columns = [Column("setting"), Column("A", text=True), Column("B", text=True)]
    if not rows:
        return macros("parts.html").box("None.")
    return Table("Settings", columns, rows).html()


def _is_different(name: str, first: Mapping[str, str], second: Mapping[str, str]) -> bool:
    """Return whether a setting has different values in two runs."""
    return first.get(name) != second.get(name)


def _merged_parameters(stages: Sequence[StageView]) -> dict[str, Any]:
    """Return the settings that any of the stages has read."""
    parameters: dict[str, Any] = {}
    for stage in stages:
        parameters |= stage.marker.provenance.parameters if stage.marker else {}
    return parameters


def _flatten(value: Any, name: str = "") -> dict[str, str]:
    """Return nested settings as `section.key`, each as JSON."""
    if isinstance(value, dict) and value:
        parts = (
            _flatten(inner, f"{name}.{key}" if name else str(key)) for key, inner in value.items()
        )
        return {key: text for part in parts for key, text in part.items()}
    return {name: json.dumps(value, ensure_ascii=False)}


def _shorten_values(*sides: str) -> list[str]:
    """Shorten the different values of a setting; long ones begin shortly before they differ."""
    # Skip the common beginning, but keep a quarter of the room to show where the change is.
    skipped = 0
    if max(map(len, sides)) > MAX_VALUE_CHARACTERS:
        letters = enumerate(zip(*sides, strict=False))
        differing = (place for place, pair in letters if len(set(pair)) > 1)
        skipped = max(0, next(differing, min(map(len, sides))) - MAX_VALUE_CHARACTERS // 4)
    texts = [f"{'…' if skipped else ''}{side[skipped:]}" for side in sides]
    return [
        text if len(text) <= MAX_VALUE_CHARACTERS else f"{text[:MAX_VALUE_CHARACTERS]}…"
        for text in texts
    ]


def _changed_by_split(first: Decodes, second: Decodes) -> list[Markup]:
    """Return, for each split, the utterances whose errors differ between two runs."""
    parts: list[Markup] = []
    for split in sorted({split for _, split in second}):
        common = [key for key in second if key[1] == split and key in first]
        common = [key for key in common if _same_references(first[key], second[key])]
        if common:
            key = min(common, key=lambda key: second[key].score.errors)
            parts += _changed_utterances(first[key], second[key])
    return [macros("run.html").alignment_key(), *parts] if parts else []


def _same_references(first: Decode, second: Decode) -> bool:
    """Return whether two decodes have the same utterances and references."""
    sides = ([(u.id, u.ref_text) for u in decode.score.utterances] for decode in (first, second))
    return next(sides) == next(sides)


def _changed_utterances(first: Decode, second: Decode) -> list[Markup]:
    """Return cards of the utterances with fewer errors in the second decode, then with more."""
    pairs = list(zip(first.score.utterances, second.score.utterances, strict=True))
    # Improvements first, the largest first.
    pairs.sort(key=lambda pair: (pair[1].errors - pair[0].errors, pair[0].id))
    better = [pair for pair in pairs if pair[1].errors < pair[0].errors]
    worse = [pair for pair in reversed(pairs) if pair[1].errors > pair[0].errors]
    parts: list[Markup] = []
    for change, utterances in (("better", better), ("worse", worse)):
        if not utterances:
            continue
        title = f"{second.split}, by {second.name}: {len(utterances):,} {change}"
        parts.append(macros("parts.html").subtitle(title))
        parts += [_changed_card(*pair) for pair in utterances[:MAX_CHANGED]]
        if len(utterances) > MAX_CHANGED:
            parts.append(macros("parts.html").note(f"And {len(utterances) - MAX_CHANGED:,} more."))
    return parts


def _changed_card(first: UtteranceScore, second: UtteranceScore) -> Markup:
    """Return a card of an utterance with its alignments in both runs."""
    return macros("run.html").changed_card(
        first.id,
        first.errors,
        second.errors,
        first.ref_text,
        marked_alignment(first),
        marked_alignment(second),
    )
