"""The benchmark's HTML page and CSVs: the paper's tables and figures for one's own run logs."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from toolkit.report.page import Page, Section, Table, side_by_side
from toolkit.score.results import Result
from toolkit.storage.files import write_atomically
from toolkit.tta.cards import machine_cards, result_cards
from toolkit.tta.csv_files import files
from toolkit.tta.diagram import system_figure
from toolkit.tta.figures import (
    accuracy_figure,
    loss_figure,
    states_figure,
    throughput_figure,
    utilisation_figure,
)
from toolkit.tta.published import tables
from toolkit.tta.result_tables import final_table, published_table, stage_table
from toolkit.tta.rules import TtaConfig
from toolkit.tta.runs import Platform
from toolkit.tta.tables import (
    NAMES,
    cost_table,
    efficiency_table,
    minutes,
    price_table,
    published_price_table,
    rent_table,
    rules_table,
    tta_table,
)

NO_PRICE = (
    '<p class="note">No platform has a price: give prices in a file for <code>--platform</code>, '
    "and this section shows the cost of an accuracy.</p>"
)
SHOWN = ("A29", "A31", "A32", "A33")
"""Published tables that are shown beside our own tables of the same kind."""
DEFINITIONS = (
    (
        "WER",
        "insertions, deletions and substitutions per word of the references (by jiwer).",
    ),
    (
        "CER",
        "edit distance in characters divided by the length of the longer of hypothesis and "
        "reference, spaces included. It is never higher than the usual one, which divides by the "
        "length of the reference.",
    ),
    (
        "TTA(a, e)",
        "minutes from the creation of the model until the median of the last e epochs' error "
        "rates on the validation data is a or less. Evaluations and swaps are included, the time "
        "between an interruption and the next start is not.",
    ),
    ("Throughput", "utterances of a batch divided by the seconds that the batch took."),
    (
        "Utilisation",
        "shares of the cores and devices in use; each sample is the mean since the one before. "
        "The paper sampled 30 ms of top, and nvidia-smi.",
    ),
    (
        "Published",
        "figures with this mark are from the papers, of other machines, data and software: their "
        "trends can be compared with ours, their minutes cannot.",
    ),
)


@dataclass(frozen=True)
class Extras:
    """Optional parts of the page."""

    equal_batch: Sequence[Platform] = ()
    """The platforms of the study with the same batch size for all (A34)."""
    equal_batch_targets: TtaConfig | None = None
    """The target accuracies of that study; None: those of the page."""
    final: Sequence[Result] = ()
    """Final error rates of the first platform, if its results.json is not yet written (A33)."""
    sweep: Table | None = None
    """Table of the beam sweep (A31)."""
    dataset: str = ""
    """HTML of the data set's description (A4)."""
    features: str = ""
    """HTML of the features' figure (A3)."""
    title: str = "Time to accuracy"


def write_page(
    platforms: Sequence[Platform],
    out: Path,
    config: TtaConfig | None = None,
    extras: Extras | None = None,
) -> dict[str, float]:
    """Write `index.html`, a self-contained page, and the CSVs of its figures.

    Args:
      platforms: from `read_platforms`; percentages are relative to the first.
      out: the folder to write.
      config: the target accuracies.
      extras: optional parts.

    Returns:
      Headline numbers: minutes of the first platform to each accuracy that it reached.
    """
    config, extras = config or TtaConfig(), extras or Extras()
    equal_batch = extras.equal_batch, extras.equal_batch_targets or config
    for name, text in files({"default": (platforms, config), "equal batch": equal_batch}).items():
        write_atomically(out / name, text)
    write_atomically(out / "index.html", build_page(platforms, config, extras).html())
    first = platforms[0]
    times = {
        f"tta {metric} {target:g}": first.tta(metric, target, config.epochs)
        for metric, target in config.targets
    }
    return {name: round(time, 2) for name, time in times.items() if time is not None}


def build_page(platforms: Sequence[Platform], config: TtaConfig, extras: Extras) -> Page:
    """Build the page from its sections."""
    page = Page(extras.title, _lead(platforms, config), footer=_footer(platforms))
    page.add(
        Section(
            "times",
            "Time to accuracy",
            "How long each platform trains until it has reached an accuracy and keeps it, and the "
            "times by other benchmarks' rules from the same logs.",
            [
                result_cards(platforms, config),
                tta_table(platforms, config, "TTA in minutes").html(),
                rules_table(platforms, config).html(),
                _published("A32"),
            ],
        )
    )
    page.add(
        Section(
            "curves",
            "Accuracy and loss",
            parts=[
                side_by_side(accuracy_figure(platforms, metric, config) for metric in NAMES),
                side_by_side([loss_figure(platforms), states_figure(platforms)]),
            ],
        )
    )
    page.add(_hardware_section(platforms, config))
    page.add(
        Section(
            "price",
            "Price and performance",
            "The cost of an accuracy: the price of a platform times the minutes that it needs.",
            [
                _html(cost_table(platforms)) or NO_PRICE,
                _html(price_table(platforms, config)),
                _html(rent_table(platforms, config)),
                _published("A29"),
                _folded(published_price_table()),
            ],
        )
    )
    if extras.equal_batch:
        page.add(_equal_section(extras.equal_batch, extras.equal_batch_targets or config))
    page.add(
        Section(
            "final",
            "Final accuracy and beam width",
            parts=[
                _html(final_table(platforms, extras.final)),
                _published("A33"),
                _html(extras.sweep),
                _published("A31"),
            ],
        )
    )
    page.add(Section("stages", "From audio to model", parts=[_html(stage_table(platforms))]))
    diagrams = [system_figure(platform) for platform in platforms]
    page.add(Section("platforms", "Platforms", parts=[machine_cards(platforms), *diagrams]))
    page.add(Section("data", "Data and features", parts=[extras.dataset, extras.features]))
    shown = SHOWN + ("A34",) * bool(extras.equal_batch)
    page.add(
        Section(
            "published",
            "More published figures",
            "The other tables of the papers that this benchmark follows, with their known errors.",
            [_published(item) for item in tables() if item not in shown],
        )
    )
    words = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in DEFINITIONS)
    box = f'<div class="box"><dl class="words">{words}</dl></div>'
    page.add(Section("definitions", "How it is measured", parts=[box]))
    return page


def _lead(platforms: Sequence[Platform], config: TtaConfig) -> str:
    """Return the result in a sentence: the hardest accuracy that all reached, fastest first."""
    for metric, target in reversed(config.targets):
        times = {p.name: p.tta(metric, target, config.epochs) for p in platforms}
        known = {name: time for name, time in times.items() if time is not None}
        if len(known) < len(platforms):
            continue
        first, *rest = sorted(known, key=lambda name: known[name])
        fastest = f"A {NAMES[metric]} of {target:g} % takes {first} {minutes(known[first])} minutes"
        others = [f"{name} {minutes(known[name])}" for name in rest]
        return ", ".join([fastest, *others]) + "."
    number = f"{len(platforms)} platforms" if len(platforms) > 1 else platforms[0].name
    return f"Trainings on {number}; none of the target accuracies was reached by all."


def _hardware_section(platforms: Sequence[Platform], config: TtaConfig) -> Section:
    return Section(
        "machine",
        "Throughput and utilisation",
        "How fast the hardware works, which is one factor of the time to accuracy: the other is "
        "how many utterances the training needs.",
        [
            efficiency_table(platforms, config).html(),
            throughput_figure(platforms, "Throughput over time"),
            *(utilisation_figure(platform, n) for n, platform in enumerate(platforms)),
        ],
    )


def _equal_section(platforms: Sequence[Platform], config: TtaConfig) -> Section:
    batches = sorted({platform.first.log.created.batch for platform in platforms})
    of = f" of {batches[0]} utterances" if len(batches) == 1 and batches[0] else ""
    return Section(
        "equal",
        "The same with equal batches",
        f"With the same batch{of} for all, only the hardware differs.",
        [
            tta_table(platforms, config, "TTA in minutes, equal batches").html(),
            throughput_figure(platforms, "Throughput with equal batches"),
            efficiency_table(platforms, config).html(),
            _published("A34"),
        ],
    )


def _html(table: Table | None) -> str:
    return "" if table is None else table.html()


def _published(item: str) -> str:
    return _folded(published_table(item))


def _folded(table: Table) -> str:
    """Return a published table, collapsed until it is opened."""
    summary = f"<summary>Published: {escape(table.title)}</summary>"
    return f"<details>{summary}{table.html()}</details>"


def _footer(platforms: Sequence[Platform]) -> str:
    commits = {
        str(((run.log.created.about or {}).get("machine") or {}).get("commit") or "")[:12]
        for platform in platforms
        for run in platform.runs
    }
    made = f" Code of the trainings: {', '.join(sorted(filter(None, commits)))}."
    runs = sum(len(platform.runs) for platform in platforms)
    return f"Made by `toolkit tta` from {runs} run logs." + (made if any(commits) else "")
