"""The report of a run: one self-contained HTML page made from its run directory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from toolkit.report import corpus, curves, provenance, results
from toolkit.report.alignments import worst_alignments
from toolkit.report.beams import beam_figures
from toolkit.report.browser import browser
from toolkit.report.budget import Budget
from toolkit.report.decodes import Decode, read_decodes
from toolkit.report.errors import KEY, SplitErrors, overview, worst_utterances
from toolkit.report.factors import factor_figures
from toolkit.report.findings import findings
from toolkit.report.folder import DAMAGE, RunFolder
from toolkit.report.grids import grids
from toolkit.report.media import Clip, read_clip
from toolkit.report.page import Page, Section, Table
from toolkit.report.phones import phone_overview
from toolkit.report.stages import StageView, counts, read_stages, stage_table
from toolkit.report.training import course
from toolkit.report.versus import versus_table
from toolkit.score.results import Result
from toolkit.stages.log import duration
from toolkit.storage.files import write_atomically

STYLE, *SCRIPTS = map(Path(__file__).with_name, ("run_page.css", "run_page.js", "browser.js"))
LEADING = 4
"""Number of splits, the largest, whose error rates are at the head of the page."""
MARGIN = 20_000
"""Bytes of the page's limit that are reserved for headings and the footer."""
MISSING = '<p class="box missing">The files of this part are damaged: see the end of the page.</p>'


@dataclass(frozen=True)
class ReportConfig:
    """How much the page shows."""

    utterances: int = 6
    """Number of worst utterances shown for each split, with spectrogram and audio."""
    max_mb: float = 8.0
    """Largest size of the page in megabytes (10^6 bytes); audio players are left out first, then
    alignments."""

    def __post_init__(self) -> None:
        if self.utterances < 0:
            raise ValueError(f"utterances must not be negative: {self.utterances}")
        if self.max_mb <= 0:
            raise ValueError(f"max_mb must be above 0: {self.max_mb}")


def write_report(root: Path, out: Path, config: ReportConfig | None = None) -> list[str]:
    """Write the page of the run in the directory `root` to the file `out`.

    Returns:
      The files that could not be read, with reasons; the page lists them too.

    Raises:
      ReportError: `root` is no run directory.
    """
    run = RunFolder.open(root)
    write_atomically(out, _RunPage(run, config or ReportConfig()).page().html())
    return list(dict.fromkeys(run.problems))


class _RunPage:
    """The sections of a run's page."""

    def __init__(self, run: RunFolder, config: ReportConfig) -> None:
        self._run, self._config = run, config
        self._stages: list[StageView] = run.part(lambda: read_stages(run), [])
        self._splits: list[corpus.Split] = run.part(lambda: corpus.read_splits(run), [])
        self._rows: list[Result] = run.part(lambda: results.read_rows(run, self._stages), [])

    def page(self) -> Page:
        """Assemble the page from its sections."""
        page = Page(
            self._title(),
            self._run.part(self._lead, ""),
            style=STYLE.read_text(encoding="utf-8"),
            script="".join(script.read_text(encoding="utf-8") for script in SCRIPTS),
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
        used = len(page.html().encode()) + sum(len(part.encode()) for part in end.parts)
        budget = Budget(round(1e6 * self._config.max_mb) - used - MARGIN)
        listed = self._browser(budget)
        page.add(self._utterances(budget))
        page.add(listed)
        page.add(self._alignments(budget))
        page.add(self._provenance())  # again, since audio may have turned out to be unreadable
        page.footer = self._footer(budget)
        return page

    def _title(self) -> str:
        last = self._run.json("stages/last_command.json")
        names = [last.get("recipe"), last.get("profile")] if isinstance(last, dict) else []
        return " ".join(str(name) for name in names if name) or self._run.root.name

    def _lead(self) -> str:
        spent = sum(stage.seconds for stage in self._stages)
        lead = [f"Stages: {counts(self._stages)}, {duration(spent)} in total." if spent else ""]
        best, compared = results.best_of(self._rows), results.compared_splits(self._rows)
        largest = sorted(compared, key=lambda split: -best[split].ref_words)[:LEADING]
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
                lambda: results.interval_figures(rows) if rows else "",
                lambda: results.error_table(rows).html() if rows else "",
                *(lambda errors=errors: versus_table(errors) for errors in self._errors),
                lambda: results.gains_table(self._run),
                lambda: results.confidence_table(self._run),
                lambda: results.detail_table(rows) if rows else "",
            ),
        )

    def _stage_section(self) -> Section:
        return Section(
            "stages",
            "Stages",
            "States by the stages' markers, without stages that were never started. The recipe's "
            "--list also compares settings and file contents.",
            self._parts(lambda: stage_table(self._stages) if self._stages else ""),
        )

    def _data(self) -> Section:
        return Section(
            "data",
            "Data",
            parts=self._parts(
                lambda: corpus.split_table(self._run, self._splits).html() if self._splits else "",
                lambda: corpus.duration_figures(self._splits) if self._splits else "",
                lambda: corpus.language_tables(self._run),
            ),
        )

    def _check(self) -> Section:
        return Section(
            "check",
            "Findings of the data check",
            parts=self._parts(lambda: findings(self._run)),
        )

    def _curves(self) -> Section:
        histories: list[curves.History] = self._run.part(
            lambda: curves.read_histories(self._run), []
        )
        return Section(
            "curves",
            "Learning curves",
            parts=self._parts(
                lambda: course(self._run, histories),
                lambda: curves.network_figures(histories),
                lambda: curves.ctc_parts(self._run),
                lambda: curves.gmm_figures(histories),
            ),
        )

    def _tuning(self) -> Section:
        return Section(
            "tuning",
            "Tuning",
            "WER in % on the development splits for all weights tried; the chosen ones are framed.",
            self._parts(lambda: grids(self._run), lambda: beam_figures(self._run)),
        )

    @cached_property
    def _errors(self) -> list[SplitErrors]:
        """The errors of the splits that were decoded, in the order of the splits."""
        decodes: list[Decode] = self._run.part(lambda: read_decodes(self._run, self._splits), [])
        found: dict[str, list[Decode]] = {}
        for decode in decodes:
            found.setdefault(decode.split, []).append(decode)
        return [SplitErrors(s, found[s.name]) for s in self._splits if s.name in found]

    def _confusions(self) -> Section:
        return Section(
            "confusions",
            "Confusions",
            "Most frequent errors of the system with the fewest errors on each split.",
            self._parts(
                lambda: "".join(map(overview, self._errors)),
                *(lambda e=errors: phone_overview(self._run, e) for errors in self._errors),
            ),
        )

    def _factors(self) -> Section:
        return Section(
            "factors",
            "What errors go with",
            "Word error rates of groups of utterances by duration, speaking rate and, where the "
            "manifest says it, noise.",
            self._parts(*(lambda e=errors: factor_figures(e) for errors in self._errors)),
        )

    def _browser(self, budget: Budget) -> Section:
        return Section(
            "browse",
            "All utterances",
            "Headings sort; links lead to the utterances with audio above.",
            self._parts(lambda: browser(self._errors, budget)),
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
            "Utterances with the most errors of the system with the fewest errors on their split.",
            [KEY, *parts] if any(parts) else [],
        )

    def _alignments(self, budget: Budget) -> Section:
        number = self._config.utterances
        return Section(
            "alignments",
            "Alignments",
            "Training utterances that fit the models least: words and phones as they were aligned. "
            "A transcript that differs from what is said shows here.",
            self._parts(
                lambda: worst_alignments(self._run, self._splits, number, budget, self._clip)
            ),
        )

    def _clip(self, split: corpus.Split, utterance: str) -> Clip | None:
        if not split.utterances[utterance].has_audio:
            self._run.note(split.path, "no players: the corpus has features and no audio")
            return None
        try:
            return read_clip(split.path, split.utterances[utterance].line)
        except DAMAGE as error:
            self._run.note(split.path, f"audio of {utterance}: {error}")
            return None

    def _provenance(self) -> Section:
        table: Table | None = self._run.part(lambda: provenance.commands_table(self._stages), None)
        return Section(
            "provenance",
            "Provenance",
            parts=self._parts(
                lambda: table.html() if table else "",
                lambda: provenance.settings(self._stages),
                lambda: provenance.log_end(self._run),
                lambda: provenance.problems(self._run),
            ),
        )

    def _parts(self, *parts: Callable[[], str]) -> Sequence[str]:
        """Make the parts of a section; damaged ones are replaced by a notice."""
        return [self._run.part(part, MISSING) for part in parts]
