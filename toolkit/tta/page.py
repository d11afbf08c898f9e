"""The page of several platforms' times to accuracy, and its CSV files."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from markupsafe import Markup

from toolkit.report.pages import Page, Section, Table, csv_text, folded, macros, side_by_side
from toolkit.score.results import Result
from toolkit.storage.files import write_atomically
from toolkit.tta.config import AXES, Dataset, TtaConfig
from toolkit.tta.figures import (
    accuracy_figure,
    loss_figure,
    states_figure,
    system_figure,
    throughput_figure,
    utilisation_figure,
)
from toolkit.tta.machine import format_devices, format_processors
from toolkit.tta.runs import Platform, TrainingRun
from toolkit.tta.tables import (
    NAMES,
    cost_table,
    duration,
    efficiency_table,
    final_table,
    minutes,
    price_table,
    published_price_table,
    published_table,
    published_tables,
    rent_table,
    rules_table,
    stage_table,
    tta_table,
)


def result_cards(platforms: Sequence[Platform], config: TtaConfig) -> Markup:
    """Make a card per platform, with its TTA to the hardest target that any platform reached."""
    reached = [
        target
        for target in config.targets
        if any(platform.tta(*target, config.epochs) is not None for platform in platforms)
    ]
    # A CER is preferred to a WER, and the lowest rate to others.
    hardest = max(reached, key=lambda target: (target[0] == "cer", -target[1]), default=None)
    return macros("parts.html").cards(
        _result_card(platform, n, hardest, config) for n, platform in enumerate(platforms)
    )


def _result_card(
    platform: Platform, colour: int, target: tuple[str, float] | None, config: TtaConfig
) -> Markup:
    """Return the card of a platform with its time to accuracy."""
    run, price = platform.first, platform.price
    headline = Markup("")
    if target is not None:
        tta = platform.tta(*target, config.epochs)
        accuracy = f"{NAMES[target[0]]} {target[1]:g} %"
        words = f"min to {accuracy}" if tta is not None else f"never reached {accuracy}"
        headline = macros("tta.html").headline_time(minutes(tta), words)
    best = [min((getattr(e, name) for e in run.evaluations), default=None) for name in NAMES]
    facts = [
        *(
            (f"best {NAMES[name]}", f"{rate:.2f} %")
            for name, rate in zip(NAMES, best, strict=True)
            if rate is not None
        ),
        ("throughput", f"{run.log.examples_per_second:.3g} utterances/s"),
        ("batch", f"{run.log.created.batch}" if run.log.created.batch else ""),
        ("trained", f"{len(run.evaluations)} epochs, {duration(run.log.seconds)}"),
        ("runs", f"{len(platform.runs)}" if len(platform.runs) > 1 else ""),
        ("starts", f"{run.log.starts}" if run.log.starts > 1 else ""),
        ("price", f"{price.total:,.2f} {price.currency}" if price and price.total else ""),
    ]
    return macros("tta.html").card(platform.name, colour, headline, facts)


def dataset_box(dataset: Dataset) -> Markup:
    """Return the axes of difficulty with the data set's value marked on each (A4)."""
    axes = [
        (title, [(value, value == getattr(dataset, axis)) for value in values])
        for axis, (title, values) in AXES.items()
    ]
    hours = f"{dataset.hours:g} h of training speech" if dataset.hours is not None else ""
    facts = "; ".join(filter(None, [hours, dataset.kept and f"kept: {dataset.kept}"]))
    return macros("tta.html").dataset(dataset.name, axes, facts)


def machine_cards(platforms: Sequence[Platform]) -> Markup:
    """Make a card per platform, with its machine, settings and topology (A30)."""
    cards = []
    for colour, platform in enumerate(platforms):
        created = platform.first.log.created
        about = created.about or {}
        machine = about.get("machine") or {}
        facts = [
            ("processor", format_processors(machine)),
            ("threads", str(machine.get("torch_threads") or "")),
            ("devices", format_devices(machine)),
            ("memory", f"{machine['memory_gib']} GiB" if machine.get("memory_gib") else ""),
            ("storage", machine.get("storage") or ""),
            ("system", machine.get("os") or ""),
            ("model", f"{created.parameters / 1e6:.2f} M parameters"),
            *((str(k), str(v)) for k, v in (about.get("settings") or {}).items()),
            ("note", platform.price.note if platform.price else ""),
        ]
        cards.append(macros("tta.html").card(platform.name, colour, _topology(machine), facts))
    return macros("parts.html").cards(cards)


def _topology(machine: dict[str, Any]) -> Markup:
    """Draw the connections of processors, memory and devices; empty without devices."""
    devices = machine.get("devices") or []
    if not devices:
        return Markup("")
    # 46 pixels for each device; the processor's two boxes need 104.
    height = max(104, 46 * len(devices))
    middle = height / 2
    parts = [
        f'<path class="wire" d="M60 {middle - 6:g}v12"/>',
        _box(0, middle - 48, 120, 42, f"{machine.get('memory_gib', '?')} GiB", "memory"),
        _box(0, middle + 6, 120, 42, f"{machine.get('sockets') or 1} x CPU", _cores(machine)),
    ]
    for number, device in enumerate(devices):
        y = height * (number + 0.5) / len(devices)
        parts.append(
            f'<path class="wire" style="stroke-width:{_link_width(device["link"]):.1f}" '
            f'd="M120 {middle + 27:g}C 150 {middle + 27:g} 140 {y:g} 172 {y:g}"/>'
        )
        below = ", ".join(filter(None, [f"{device['memory_gib']:g} GiB", device["link"]]))
        parts.append(_box(172, y - 20, 148, 40, device["name"], below))
    return Markup(
        f'<svg viewBox="0 0 320 {height:g}" role="img" aria-label="Topology">{"".join(parts)}</svg>'
    )


def _cores(machine: dict[str, Any]) -> str:
    """Format the number of cores; empty if it is not known."""
    return f"{machine['cores']} cores" if machine.get("cores") else ""


def _link_width(link: str) -> float:
    """Return the width of a drawn link in pixels: from 1 for `x1` to 5 for `x16`."""
    lanes = link.rpartition("x")[2]
    return min(5.0, 0.75 + int(lanes) / 4) if lanes.isdigit() else 1.5


def _box(x: float, y: float, width: float, height: float, text: str, small: str = "") -> str:
    """Draw a box with a text and a second, smaller line."""
    first = y + height / 2 + (4 if not small else -3)
    below = (
        f'<text class="label small" x="{x + width / 2:g}" y="{first + 15:g}" '
        f'text-anchor="middle">{escape(small)}</text>'
        if small
        else ""
    )
    return (
        f'<rect class="box-shape" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" '
        f'rx="5"/><text class="label" x="{x + width / 2:g}" y="{first:g}" text-anchor="middle">'
        f"{escape(text)}</text>{below}"
    )


Studies = Mapping[str, tuple[Sequence[Platform], TtaConfig]]
"""`default` and `equal batch`, each with its platforms and target accuracies."""
Rows = Iterator[dict[str, Any]]


def files(studies: Studies) -> dict[str, str]:
    """Return the text of each CSV file by name; a text without rows is empty."""
    of_runs = {
        "runs": _run,
        "evaluations": _evaluations,
        "steps": _steps,
        "utilisation": _utilisation,
    }
    texts = {"tta.csv": csv_text(_times(studies))}
    for name, rows_of in of_runs.items():
        texts[f"{name}.csv"] = csv_text(
            {"study": study, "platform": platform.name, "run": number} | row
            for study, (platforms, _) in studies.items()
            for platform in platforms
            for number, run in enumerate(platform.runs, 1)
            for row in rows_of(run)
        )
    return texts


def _times(studies: Studies) -> Rows:
    """Yield the rows of tta.csv, with the times to accuracy."""
    for study, (platforms, config) in studies.items():
        for platform in platforms:
            price = platform.price.total if platform.price else None
            for metric, target in config.targets:
                tta = platform.tta(metric, target, config.epochs)
                base_tta = platforms[0].tta(metric, target, config.epochs)
                yield {
                    "study": study,
                    "platform": platform.name,
                    "metric": metric,
                    "target": target,
                    "tta_minutes": _number(tta),
                    "percent_of_first": _number(100 * tta / base_tta if tta and base_tta else None),
                    "times_price": _number(tta * price if tta and price else None),
                    "dawnbench_minutes": _number(platform.dawnbench(metric, target)),
                    "mlperf_minutes": _number(platform.mlperf(metric, target)),
                }


def _run(run: TrainingRun) -> Rows:
    """Yield a run's row of runs.csv."""
    yield {
        "seconds": run.log.seconds,
        "starts": run.log.starts,
        "lost": run.lost,
        "batch": run.log.created.batch,
        "parameters": run.log.created.parameters,
        "epochs": len(run.evaluations),
        "examples": run.log.examples,
        "examples_per_second": _number(run.log.examples_per_second),
        "lost_at_swaps": _number(run.dip),
        **{f"seconds_{state.replace(' ', '_')}": _number(s) for state, s in run.states.items()},
    }


def _evaluations(run: TrainingRun) -> Rows:
    """Yield a run's rows of evaluations.csv."""
    for event in run.evaluations:
        names = ("seconds", "epoch", "step", "cer", "cer_usual", "wer", "ser", "loss")
        row = {name: getattr(event, name) for name in (*names, "duration", "waited")}
        yield row | {"search": run.search}


def _steps(run: TrainingRun) -> Rows:
    """Yield a run's rows of steps.csv, the training steps."""
    smooth, rates = run.losses()[1].tolist(), run.throughput[1].tolist()
    for event, smoothed, rate in zip(run.steps, smooth, rates, strict=True):
        yield {
            "seconds": event.seconds,
            "step": event.step,
            "epoch": event.epoch,
            "loss": event.loss,
            "smoothed_loss": _number(smoothed),
            "examples": event.examples,
            "seconds_in_step": event.seconds_in_step,
            "examples_per_second": _number(rate),
        }


def _utilisation(run: TrainingRun) -> Rows:
    """Yield a run's rows of utilisation.csv."""
    for event in run.utilisation:
        yield {
            "seconds": event.seconds,
            "process": event.process,
            "cpu": " ".join(map(str, event.cpu)),
            "gpus": " ".join(map(str, event.gpus)),
        }


def _number(value: float | None) -> float | None:
    """Round a number to four decimals; None stays None."""
    return None if value is None else round(value, 4)


SHOWN = ("A29", "A31", "A32", "A33")
"""Published tables that are shown beside our own tables of the same kind."""
DEFINITIONS = (
    (
        "WER",
        "insertions, deletions and substitutions per word of the references (by jiwer).",
    ),
    (
        "CER",
        "edit distance in characters divided by the length of the hypothesis or the reference, "
        "whichever is longer, spaces included. It is never higher than the usual CER, which "
        "divides by the length of the reference.",
    ),
    (
        "TTA(a, e)",
        "minutes from the creation of the model until the median of the last e epochs' error "
        "rates on the validation data is a or less. Evaluations and swaps of models are included. "
        "The time between an interruption and the next start is not included.",
    ),
    ("Throughput", "utterances of a batch divided by the seconds that the batch took."),
    (
        "Utilisation",
        "shares of the cores and devices in use; each sample is the mean since the sample before. "
        "The paper used samples of 30 ms from top, and nvidia-smi.",
    ),
    (
        "Published",
        "figures with this mark are from the papers, and so from other machines, data and "
        "software. Their trends can be compared with those measured here, but not their minutes.",
    ),
)


@dataclass(frozen=True)
class Extras:
    """Optional parts of the page."""

    equal_batch: Sequence[Platform] = ()
    """The platforms of the study with the same batch size for all (A34)."""
    equal_batch_targets: TtaConfig | None = None
    """The target accuracies of that study; None: those of the rest of the page."""
    final: Sequence[Result] = ()
    """Final error rates of the first platform, if its results.json is not yet written (A33)."""
    sweep: Table | None = None
    """Table of the beam sweep (A31)."""
    dataset: Dataset | None = None
    """The data set's description (A4)."""
    features: Markup | None = None
    """The features' figure (A3)."""
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
      Headline numbers: the first platform's minutes to each accuracy that it reached, under names
      such as `tta cer 10`.
    """
    # The CSVs have the figures of both studies; the page shows what `extras` has.
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
            "How long each platform trains until it reaches an accuracy and keeps it. The same "
            "logs are also evaluated by the rules of other benchmarks.",
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
                _html(cost_table(platforms)) or macros("tta.html").no_price(),
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
    dataset = dataset_box(extras.dataset) if extras.dataset else Markup("")
    page.add(Section("data", "Data and features", parts=[dataset, extras.features or Markup("")]))
    # Every published table is on the page once: beside ours, or in the section `published`.
    shown_elsewhere = SHOWN + ("A34",) * bool(extras.equal_batch)
    page.add(
        Section(
            "published",
            "More published figures",
            "The other tables of the papers that this benchmark follows, with their known errors.",
            [_published(item) for item in published_tables() if item not in shown_elsewhere],
        )
    )
    definitions = macros("tta.html").definitions(DEFINITIONS)
    page.add(Section("definitions", "How it is measured", parts=[definitions]))
    return page


def _lead(platforms: Sequence[Platform], config: TtaConfig) -> str:
    """Return the result in a sentence: times to the hardest accuracy that all platforms reached."""
    for metric, target in reversed(config.targets):
        times = {p.name: p.tta(metric, target, config.epochs) for p in platforms}
        reached = {name: time for name, time in times.items() if time is not None}
        if len(reached) < len(platforms):
            continue
        # All platforms reached it, and it is the hardest such target: say who was fastest.
        first, *slower_names = sorted(reached, key=lambda name: reached[name])
        fastest = (
            f"A {NAMES[metric]} of {target:g} % takes {first} {minutes(reached[first])} minutes"
        )
        slower = [f"{name} {minutes(reached[name])}" for name in slower_names]
        return ", ".join([fastest, *slower]) + "."
    number = f"{len(platforms)} platforms" if len(platforms) > 1 else platforms[0].name
    return f"Training runs on {number}; none of the target accuracies was reached by all."


def _hardware_section(platforms: Sequence[Platform], config: TtaConfig) -> Section:
    """Return the section on throughput and utilisation."""
    return Section(
        "machine",
        "Throughput and utilisation",
        "How fast the hardware works. This is one factor of the time to accuracy; the other "
        "factor is how many utterances the training needs.",
        [
            efficiency_table(platforms, config).html(),
            throughput_figure(platforms, "Throughput over time"),
            *(utilisation_figure(platform, n) for n, platform in enumerate(platforms)),
        ],
    )


def _equal_section(platforms: Sequence[Platform], config: TtaConfig) -> Section:
    """Return the section on training runs with equal batches."""
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


def _html(table: Table | None) -> Markup:
    """Return a table as HTML; empty without a table."""
    return Markup("") if table is None else table.html()


def _published(item: str) -> Markup:
    """Return a published table by its item, collapsed."""
    return _folded(published_table(item))


def _folded(table: Table) -> Markup:
    """Return a published table, collapsed until it is opened."""
    return folded(f"Published: {table.title}", table.html())


def _footer(platforms: Sequence[Platform]) -> str:
    """Return the footer of the page, with the number of logs and the commits."""
    commits = {
        str(((run.log.created.about or {}).get("machine") or {}).get("commit") or "")[:12]
        for platform in platforms
        for run in platform.runs
    }
    commits_text = f" Code of the training runs: {', '.join(sorted(filter(None, commits)))}."
    runs = sum(len(platform.runs) for platform in platforms)
    return f"Made by `toolkit tta` from {runs} run logs." + (commits_text if any(commits) else "")
