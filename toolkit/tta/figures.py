"""The paper's figures, drawn from run logs: accuracy, loss, throughput, utilisation (A35-A37)."""

from collections.abc import Sequence
from dataclasses import replace
from html import escape

import numpy as np

from toolkit.report.chart import Band, Chart, Ring, Series, Target
from toolkit.report.page import figure, figures, legend
from toolkit.train.runlog import Evaluated, Event, Saved, Sentences, Swapped, Utilisation
from toolkit.tta.rules import TtaConfig
from toolkit.tta.runs import STATES, Platform, TrainingRun
from toolkit.tta.tables import NAMES, duration, minutes
from toolkit.tta.utilisation_phases import Span, phases, waiting, window

CONTRAST = (1, 0, 1, 2, 0, 3, 1, 0)
"""For each colour of the page's palette another one that is easily told from it."""
SECONDS_SHOWN = 25.0
"""Length of the figure of utilisation in seconds (A36: 25)."""
PHASES = {
    "transfer": "data and model to the devices",
    "compute": "devices compute",
    "update": "gradients gathered, model updated",
}
PAUSES: dict[type[Event], str] = {
    Sentences: "generating sentences",
    Saved: "saving a checkpoint",
    Swapped: "swapping models",
    Evaluated: "evaluating",
}


def accuracy_figure(platforms: Sequence[Platform], metric: str, config: TtaConfig) -> str:
    """CER or WER on the validation data over time, with the targets as lines (A35)."""
    series, rings = [], []
    for colour, platform in enumerate(platforms):
        for number, run in enumerate(platform.runs):
            seconds, rates = run.curve(metric)
            titles = [
                f"{platform.name}, epoch {event.epoch}: {NAMES[metric]} "
                f"{getattr(event, metric):.2f} % after {minutes(event.seconds / 60)} min"
                for event in run.evaluations
            ]
            series.append(
                Series(
                    platform.name,
                    seconds / 60,
                    rates,
                    colour,
                    faint=number > 0,
                    markers=True,
                    titles=titles,
                )
            )
        rings += _rings(platform, colour, metric, config)
    targets = [Target(a, f"TTA({a:g})") for a in getattr(config, metric)]
    name = NAMES[metric]
    return figure(
        Chart(
            f"{name} on the validation data over time",
            "minutes",
            f"{name} in percent",
            series,
            log_y=True,
            targets=targets,
            rings=rings,
        ),
        f"{name} on the validation data",
        f"Rings: where the median of {config.epochs} epochs reaches a target."
        + _searches(platforms),
    )


def _searches(platforms: Sequence[Platform]) -> str:
    """Name the search behind each curve."""
    known = {platform.name: platform.first.search for platform in platforms}
    if len(set(known.values())) == 1:
        found = next(iter(known.values()))
        return f" Recognised by {found}." if found else ""
    named = [f"{name} by {found or 'an unnamed search'}" for name, found in known.items()]
    return f" Recognised: {'; '.join(named)}."


def _rings(platform: Platform, colour: int, metric: str, config: TtaConfig) -> list[Ring]:
    rings = []
    for target in getattr(config, metric):
        tta = platform.first.tta(metric, target, config.epochs)
        if tta is not None:
            title = f"{platform.name}: TTA({target:g}) {minutes(tta)} min"
            rings.append(Ring(tta, target, colour, title))
    return rings


def loss_figure(platforms: Sequence[Platform]) -> str:
    """Training loss, smoothed, on a logarithmic axis (A35)."""
    series = []
    for colour, platform in enumerate(platforms):
        for number, run in enumerate(platform.runs):
            seconds, losses = run.losses()
            series.append(Series(platform.name, seconds / 60, losses, colour, faint=number > 0))
    return figure(
        Chart("Training loss over time", "minutes", "CTC loss", series, log_y=True),
        "Training loss",
        "Smoothed by a Gaussian of 10 log entries (of a twentieth of them in a short log).",
    )


def throughput_figure(platforms: Sequence[Platform], title: str) -> str:
    """Utterances per second over time, with the dips where models are swapped (A37)."""
    shown = [(n, platform, platform.first) for n, platform in enumerate(platforms)]
    most = max((float(run.throughput[1].max(initial=0.0)) for _, _, run in shown), default=0.0)
    last = max(run.log.seconds for _, _, run in shown) / 60
    charts = []
    for colour, platform, run in shown:
        ends, rates = run.throughput
        begins = np.concatenate([[0.0], ends])[:-1]
        charts.append(
            Chart(
                f"Throughput of {platform.name} over time",
                "minutes",
                "" if charts else "utterances per second",
                [
                    Series(
                        platform.name,
                        np.stack([begins, ends], axis=1).ravel() / 60,
                        np.repeat(rates, 2),
                        colour,
                    )
                ],
                fine=True,
                x_range=(0.0, last),
                y_range=(0.0, 1.08 * most or 1.0),
            )
        )
    dips = [f"{p.name} {100 * run.dip:.0f} %" for _, p, run in shown if run.dip is not None]
    lost = f" Entries with a swap of models are slower by: {', '.join(dips)}." if dips else ""
    return figures(
        charts,
        [platform.name for platform in platforms],
        title,
        "Each step is one entry of the log, time in other states included." + lost,
    )


def utilisation_figure(platform: Platform, colour: int) -> str:
    """Utilisation of a platform's first run in 25 seconds, with the phases of a step (A36)."""
    run = platform.first
    paused = _pauses(run)
    samples = window(run.utilisation, SECONDS_SHOWN, [(b.begin, b.end) for b in paused])
    if samples is None:
        return ""
    several = samples.gpus.shape[1]
    series = [Series("processors, training", samples.seconds, 100 * samples.cpu, colour)]
    if not np.array_equal(samples.cpu, samples.machine):
        everything = 100 * samples.machine
        other = CONTRAST[colour % len(CONTRAST)]
        series.append(Series("processors, everything", samples.seconds, everything, other))
    series += [
        Series(f"device {n}", samples.seconds, 100 * samples.gpus[:, n], 4 + n, True)
        for n in range(several)
    ]
    pauses = [band for band in _shifted(paused, samples.began) if band.end > 0]
    pauses = [band for band in pauses if band.begin < samples.seconds[-1]]
    spans = phases(samples)
    for pause in pauses:
        spans = [part for span in spans for part in _outside(span, pause)]
    bands = [Band(s.begin, s.end, s.phase, PHASES[s.phase]) for s in spans] + pauses
    seen = {span.phase for span in spans}
    kinds = [(phase, text) for phase, text in PHASES.items() if phase in seen]
    if pauses:
        names = list(dict.fromkeys(band.title for band in pauses))
        kinds.append(("pause", ", ".join(names)))
    key = legend((s.name, s.colour, s.dashed) for s in series) + _key(kinds)
    end = float(samples.seconds[-1])
    title = f"Utilisation of {platform.name} over {end:.0f} seconds"
    chart = Chart(
        title,
        "seconds",
        "percent",
        series,
        bands=bands,
        x_range=(0.0, max(end, 1e-9)),
        y_range=(0.0, 100.0),
    )
    caption = f"From {duration(samples.began)} after the model's creation. "
    if several and not spans:
        caption += "The utilisation of the devices is too even to detect phases. "
    waits = [f"device {n} {100 * w:.0f} %" for n, w in enumerate(waiting(samples)) if w >= 0.02]
    if waits:
        caption += f"Waiting for another device: {', '.join(waits)} of the time. "
    if not several:
        caption += _without_devices(run)
    return figure(chart, title, caption.strip(), wide=True, key=key)


def _without_devices(run: TrainingRun) -> str:
    """Say why the log has no utilisation of devices."""
    machine = (run.log.created.about or {}).get("machine") or {}
    if not machine.get("devices"):
        return "Without accelerators a step has no phases of transfer and update. "
    reason = machine.get("unmeasured")
    return f"The utilisation of the devices was not measured{f': {reason}' if reason else ''}. "


def _pauses(run: TrainingRun) -> list[Band]:
    """Return the times in states other than training, in seconds of the run's clock."""
    bands = []
    before: Event = Event()
    for event in run.log.events:
        end = event.seconds
        if isinstance(event, Evaluated) and isinstance(before, Swapped):
            end = before.seconds - before.duration  # logged after the models were swapped back
        spent = event.waited if isinstance(event, Evaluated) else getattr(event, "duration", 0.0)
        if type(event) in PAUSES and spent > 0:
            bands.append(Band(end - spent, end, "pause", PAUSES[type(event)]))
        before = before if isinstance(event, Utilisation) else event
    return bands


def _shifted(bands: Sequence[Band], zero: float) -> list[Band]:
    return [replace(band, begin=band.begin - zero, end=band.end - zero) for band in bands]


def _outside(span: Span, pause: Band) -> list[Span]:
    """Return the parts of a phase outside a pause."""
    if pause.end <= span.begin or span.end <= pause.begin:
        return [span]
    parts = (span.begin, pause.begin), (pause.end, span.end)
    return [Span(span.phase, begin, end) for begin, end in parts if end > begin]


def _key(kinds: Sequence[tuple[str, str]]) -> str:
    items = "".join(f'<li><i class="patch {kind}"></i>{escape(text)}</li>' for kind, text in kinds)
    return f'<ul class="key">{items}</ul>' if items else ""


def states_figure(platforms: Sequence[Platform]) -> str:
    """Share of each state in the time of each platform's first run (A22, A39)."""
    bars = []
    for platform in platforms:
        spent = platform.first.states
        total = sum(spent.values()) or 1.0
        shares = [(n, state, s / total) for n, (state, s) in enumerate(spent.items()) if s > 0]
        parts = "".join(
            f'<i class="s{n}" style="flex:{share:.5f}" title="{_share_text(state, share)}"></i>'
            for n, state, share in shares
        )
        words = ", ".join(_share_text(state, share) for _, state, share in shares)
        bars.append(
            f"<h4>{escape(platform.name)}</h4><div class=stack aria-hidden=true>{parts}</div>"
            f'<p class="note">{words}</p>'
        )
    key = "".join(f'<li><i class="swatch s{n}"></i>{state}</li>' for n, state in enumerate(STATES))
    return (
        '<div class="box"><h3>Time in each state of the training</h3>'
        f'<ul class="key">{key}</ul>{"".join(bars)}</div>'
    )


def _share_text(state: str, share: float) -> str:
    return f"{state} {100 * share:.{0 if share >= 0.1 else 1}f} %"
