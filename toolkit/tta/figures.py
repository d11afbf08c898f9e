"""Figures of the page: curves, throughput, utilisation, block diagrams (A41), features (A3)."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from markupsafe import Markup

from toolkit.report.charts import Band, Chart, Ring, Series, Target, linear_ticks
from toolkit.report.pages import figure, figures, legend, macros
from toolkit.train.runlog import Evaluated, Event, Saved, Sentences, Swapped, Utilisation
from toolkit.tta.config import TtaConfig
from toolkit.tta.machine import format_devices, format_processors
from toolkit.tta.runs import STATES, Platform, TrainingRun
from toolkit.tta.tables import NAMES, duration, minutes
from toolkit.tta.utilisation import Span, phases, waiting, window

if TYPE_CHECKING:
    from torch import Tensor


CONTRAST = (1, 0, 1, 2, 0, 3, 1, 0)
"""Index of a contrasting colour, for each colour of the page's palette."""
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


def accuracy_figure(platforms: Sequence[Platform], metric: str, config: TtaConfig) -> Markup:
    """Return a figure of CER or WER over time, with the targets as lines (A35)."""
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
    """Say which search evaluated each curve."""
    search_by_platform = {platform.name: platform.first.search for platform in platforms}
    if len(set(search_by_platform.values())) == 1:
        search = next(iter(search_by_platform.values()))
        return f" Recognised by {search}." if search else ""
    named = [
        f"{name} by {search or 'an unnamed search'}" for name, search in search_by_platform.items()
    ]
    return f" Recognised: {'; '.join(named)}."


def _rings(platform: Platform, colour: int, metric: str, config: TtaConfig) -> list[Ring]:
    """Return circles at the points where a platform reaches the targets."""
    rings = []
    for target in getattr(config, metric):
        tta = platform.first.tta(metric, target, config.epochs)
        if tta is not None:
            title = f"{platform.name}: TTA({target:g}) {minutes(tta)} min"
            rings.append(Ring(tta, target, colour, title))
    return rings


def loss_figure(platforms: Sequence[Platform]) -> Markup:
    """Return a figure of the training loss, smoothed, on a logarithmic axis (A35)."""
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


def throughput_figure(platforms: Sequence[Platform], title: str) -> Markup:
    """Return a figure of throughput over time, with dips at model swaps (A37)."""
    numbered = [(n, platform, platform.first) for n, platform in enumerate(platforms)]
    most = max((float(run.throughput[1].max(initial=0.0)) for _, _, run in numbered), default=0.0)
    last = max(run.log.seconds for _, _, run in numbered) / 60
    charts = []
    for colour, platform, run in numbered:
        ends, rates = run.throughput
        # A step is drawn as a horizontal line from the end of the step before to its own end.
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
    dips = [f"{p.name} {100 * run.dip:.0f} %" for _, p, run in numbered if run.dip is not None]
    lost = f" Entries with a swap of models are slower by: {', '.join(dips)}." if dips else ""
    return figures(
        charts,
        [platform.name for platform in platforms],
        title,
        "Each step of the line is one entry of the log, including time in other states." + lost,
    )


def utilisation_figure(platform: Platform, colour: int) -> Markup:
    """Return a figure of 25 s of a platform's utilisation, with a step's phases (A36)."""
    run = platform.first
    paused = _pauses(run)
    # 1. Choose the window, preferably one without pauses.
    samples = window(run.utilisation, SECONDS_SHOWN, [(b.begin, b.end) for b in paused])
    if samples is None:
        return ""
    # 2. Lines: shares in percent of the processors and of each device.
    num_devices = samples.gpus.shape[1]
    series = [Series("processors, training", samples.seconds, 100 * samples.cpu, colour)]
    # The log has both the training's and the machine's use of the processors.
    if not np.array_equal(samples.cpu, samples.machine):
        everything = 100 * samples.machine
        contrast = CONTRAST[colour % len(CONTRAST)]
        series.append(Series("processors, everything", samples.seconds, everything, contrast))
    series += [
        Series(f"device {n}", samples.seconds, 100 * samples.gpus[:, n], 4 + n, True)
        for n in range(num_devices)
    ]
    # 3. Bands: the phases of the steps, cut where training pauses, all in the window's clock.
    pauses = [band for band in _shifted(paused, samples.began) if band.end > 0]
    pauses = [band for band in pauses if band.begin < samples.seconds[-1]]
    spans = phases(samples)
    for pause in pauses:
        spans = [part for span in spans for part in _outside(span, pause)]
    bands = [Band(s.begin, s.end, s.phase, PHASES[s.phase]) for s in spans] + pauses
    phase_names = {span.phase for span in spans}
    kinds = [(phase, text) for phase, text in PHASES.items() if phase in phase_names]
    if pauses:
        names = list(dict.fromkeys(band.title for band in pauses))
        kinds.append(("pause", ", ".join(names)))
    # 4. Key, axes and caption.
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
    caption = f"The figure begins {duration(samples.began)} after the model's creation. "
    if num_devices and not spans:
        caption += "The utilisation of the devices is too even to detect phases. "
    waits = [f"device {n} {100 * w:.0f} %" for n, w in enumerate(waiting(samples)) if w >= 0.02]
    if waits:
        caption += f"Waiting for another device: {', '.join(waits)} of the time. "
    if not num_devices:
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
    previous: Event = Event()
    for event in run.log.events:
        end = event.seconds
        if isinstance(event, Evaluated) and isinstance(previous, Swapped):
            # Logged after the models were swapped back: the evaluation ended before that swap.
            end = previous.seconds - previous.duration
        pause_seconds = (
            event.waited if isinstance(event, Evaluated) else getattr(event, "duration", 0.0)
        )
        if type(event) in PAUSES and pause_seconds > 0:
            bands.append(Band(end - pause_seconds, end, "pause", PAUSES[type(event)]))
        previous = previous if isinstance(event, Utilisation) else event
    return bands


def _shifted(bands: Sequence[Band], zero: float) -> list[Band]:
    """Return bands on a time axis that begins at `zero`."""
    return [replace(band, begin=band.begin - zero, end=band.end - zero) for band in bands]


def _outside(span: Span, pause: Band) -> list[Span]:
    """Return the parts of a phase outside a pause."""
    if pause.end <= span.begin or span.end <= pause.begin:
        return [span]
    parts = (span.begin, pause.begin), (pause.end, span.end)
    return [Span(span.phase, begin, end) for begin, end in parts if end > begin]


def _key(kinds: Sequence[tuple[str, str]]) -> Markup:
    """Return the key of coloured patches, each with its CSS class and text; empty without any."""
    if not kinds:
        return Markup("")
    return macros("parts.html").key((f"patch {kind}", text) for kind, text in kinds)


def states_figure(platforms: Sequence[Platform]) -> Markup:
    """Return a figure of the share of each state in the platforms' first runs (A22, A39)."""
    bars = []
    for platform in platforms:
        seconds = platform.first.states
        total = sum(seconds.values()) or 1.0
        shares = [
            (number, state_seconds / total, _share_text(state, state_seconds / total))
            for number, (state, state_seconds) in enumerate(seconds.items())
            if state_seconds > 0
        ]
        bars.append((platform.name, shares, ", ".join(text for _, _, text in shares)))
    key = macros("parts.html").key((f"swatch s{n}", state) for n, state in enumerate(STATES))
    return macros("tta.html").states(key, bars)


def _share_text(state: str, share: float) -> str:
    """Format the share of a state in percent."""
    return f"{state} {100 * share:.{0 if share >= 0.1 else 1}f} %"


Where = Literal["storage", "processors", "devices", ""]
DIAGRAM_WIDE, DIAGRAM_NARROW = (760, 5), (340, 2)
"""Width of a drawing in pixels, and boxes in a row."""
BOX_GAP, BOX_HEIGHT, ROW_HEIGHT = 22, 44, 62
MAX_BOX_CHARACTERS = 22
"""Characters of a box's text; the rest is in its tooltip."""
COLOURS = {"storage": 7, "processors": 0, "devices": 1}
"""Colour of the boxes by the hardware that does their work."""


@dataclass(frozen=True)
class Block:
    """A box of the diagram."""

    text: str
    small: str = ""
    """A second line."""
    where: Where = ""
    """The hardware that does the work; empty: not shown."""


def system_figure(platform: Platform) -> Markup:
    """Draw the system of a platform's first run: features, acoustic model, language model, layers.

    Empty if the log does not describe the system, as in logs of earlier versions.
    """
    about = platform.first.log.created.about or {}
    system, machine = about.get("system"), about.get("machine") or {}
    if not system:
        return Markup("")
    computing: Where = "devices" if machine.get("devices") else "processors"
    chains = {
        "Features": _features(system),
        "Acoustic model": _acoustic_model(system, platform.first.log.created.devices, computing),
        "Language model": _language_model(system, about.get("settings") or {}),
        "Layers of the network": [
            Block(text, small, computing) for text, small in system["layers"]
        ],
    }
    drawings = [
        (name, _chains_svg(platform.name, chains, *size))
        for name, size in (("wide", DIAGRAM_WIDE), ("narrow", DIAGRAM_NARROW))
    ]
    hardware = {
        "storage": machine.get("storage") or "",
        "processors": format_processors(machine),
        "devices": format_devices(machine),
    }
    key = _key(
        [(f"c{COLOURS[where]}", f"{where}: {text}") for where, text in hardware.items() if text]
    )
    title = f"From audio to text on {platform.name}"
    return macros("parts.html").figure(title, drawings, key)


def _features(system: dict[str, Any]) -> list[Block]:
    """Return the diagram's boxes from audio to records."""
    return [
        Block("audio", "", "storage"),
        Block("front end", f"{system['values']} values per frame", "processors"),
        Block("features", "", "storage"),
        Block("records", "with labels", "storage"),
    ]


def _acoustic_model(system: dict[str, Any], replicas: int, computing: Where) -> list[Block]:
    """Return the diagram's boxes from records to log-probabilities."""
    copies = f"{replicas} copies of it" if replicas > 1 else "one copy"
    readers = system["readers"]
    return [
        Block("records", "", "storage"),
        Block(
            f"{readers} reader{'s' * (readers != 1)}" if readers else "a reading thread",
            f"per copy, {system['buffer']} batches",
            "processors",
        ),
        Block(f"batches of {system['batch']}", copies, computing),
        Block("network, CTC loss", f"{system['units']} outputs", computing),
        Block(system["optimizer"], "weights, checkpoints", computing),
    ]


def _language_model(system: dict[str, Any], settings: dict[str, Any]) -> list[Block]:
    """Return the diagram's boxes from log-probabilities to text."""
    search, _, language_model = str(settings.get("evaluation", "")).partition(", ")
    return [
        Block("log-probabilities", f"of {system['units']} outputs", "processors"),
        Block(f"search: {search}", language_model.partition(", ")[0], "processors"),
        Block("text", "WER, CER", "processors"),
    ]


def _chains_svg(name: str, chains: dict[str, Sequence[Block]], width: int, most: int) -> Markup:
    """Draw chains of boxes below each other, each under its title."""
    parts, y = [], 0.0
    # Width of a box: `most` boxes and the gaps between them fill a row.
    box = (width - BOX_GAP * (most - 1)) / most
    for title, blocks in chains.items():
        parts.append(f'<text class="label small" x="0" y="{y + 12:g}">{escape(title)}</text>')
        for number, block in enumerate(blocks):
            row, column = divmod(number, most)
            x, top = column * (box + BOX_GAP), y + 20 + ROW_HEIGHT * row
            parts.append(_block(block, x, top, box))
            if number + 1 == len(blocks):
                continue
            if column + 1 < most:
                parts.append(_arrow(x + box, top + BOX_HEIGHT / 2, BOX_GAP, 0))
            else:
                parts.append(
                    _arrow(x + box / 2, top + BOX_HEIGHT, -(width - box), ROW_HEIGHT - BOX_HEIGHT)
                )
        y += 20 + ROW_HEIGHT * -(-len(blocks) // most) + 6
    return Markup(
        f'<svg viewBox="0 0 {width} {y:g}" role="img" aria-label="Block diagram of {escape(name)}">'
        f"{''.join(parts)}</svg>"
    )


def _block(block: Block, x: float, y: float, width: float) -> str:
    """Draw a box with its text."""
    hue = f" c{COLOURS[block.where]}" if block.where else ""
    lines = [(block.text, ""), (block.small, " small")] if block.small else [(block.text, "")]
    # Baseline of the first line: texts are 16 units apart and centred in the box.
    first = y + BOX_HEIGHT / 2 + (4 if len(lines) == 1 else -4)
    texts = "".join(
        f'<text class="label{kind}" x="{x + width / 2:.5g}" y="{first + 16 * n:g}" '
        f'text-anchor="middle">{escape(_short(text))}</text>'
        for n, (text, kind) in enumerate(lines)
    )
    whole = f"<title>{escape(', '.join(text for text, _ in lines))}</title>"
    return (
        f'<g>{whole}<rect class="box-shape placed{hue}" x="{x:.5g}" y="{y:g}" width="{width:.5g}" '
        f'height="{BOX_HEIGHT}" rx="5"/>{texts}</g>'
    )


def _short(text: str) -> str:
    """Shorten a text to fit a box."""
    return (
        text if len(text) <= MAX_BOX_CHARACTERS else f"{text[: MAX_BOX_CHARACTERS - 1].rstrip()}…"
    )


def _arrow(x: float, y: float, dx: float, dy: float) -> str:
    """Draw an arrow: to the right, or down and back to the first box of the next row."""
    if not dy:
        return f'<path class="wire" d="M{x:.5g} {y:g}h{dx - 5:g}m-4 -4l4 4l-4 4"/>'
    half_dy = dy / 2
    return (
        f'<path class="wire" d="M{x:.5g} {y:g}v{half_dy:g}h{dx:.5g}v{half_dy - 2:g}'
        f'm-4 -4l4 4l4 -4"/>'
    )


PANELS_WIDE, PANELS_NARROW = 1040.0, 400.0
LEFT, RIGHT, PANEL_HEIGHT, PANEL_GAP = 46.0, 14.0, 118.0, 30.0
"""Margins, height of a panel, and gap between panels in pixels."""


def feature_figure(audio: Path) -> Markup:
    """Return the figure of an audio file: 80 log-mel and 13 MFCC of windows of 32 ms (A1, A3).

    Raises:
      AudioError: the file cannot be read.
      FrontendError: there is no front end on this Python, or the file is shorter than a window.
    """
    from toolkit.features.audio import load_audio

    return utterance_figure(load_audio(audio), audio.name)


def utterance_figure(samples: "Tensor", name: str) -> Markup:
    """Return the figure of samples [S] at 16 kHz; see `feature_figure`."""
    from toolkit.features.config import PRESETS
    from toolkit.features.frontend import Frontend

    config = PRESETS["fbank80-mfcc13"]
    features = Frontend(config)(samples).numpy()
    mel, cepstra = np.split(features, [config.mel_bins], axis=1)
    return panels(samples.numpy(), mel, cepstra, config.sampling_rate, name)


def panels(
    samples: np.ndarray, mel: np.ndarray, cepstra: np.ndarray, rate: int, name: str
) -> Markup:
    """Draw samples [S], log-mel energies [T, 80] and cepstra [T, 13], one above the other.

    Each cepstral coefficient has its own scale, as the first one would dominate the others.
    """
    # [T, 13]: each coefficient with mean 0 and standard deviation 1.
    scaled = (cepstra - cepstra.mean(axis=0)) / np.maximum(cepstra.std(axis=0), 1e-9)
    images = [_png(mel), _png(np.clip(scaled, -2.5, 2.5))]
    labels = [f"{mel.shape[1]} log-mel energies", f"{cepstra.shape[1]} MFCC"]
    drawings = [
        (kind, _panels_svg(samples, images, labels, rate, width))
        for kind, width in (("wide", PANELS_WIDE), ("narrow", PANELS_NARROW))
    ]
    caption = (
        "From samples to features: windows of 32 ms every 10 ms; bright is loud. Each cepstral "
        "coefficient has its own scale."
    )
    return macros("parts.html").figure(name, drawings, caption=caption)


def _panels_svg(
    samples: np.ndarray, images: list[str], labels: list[str], rate: int, width: float
) -> Markup:
    """Draw waveform, energies and cepstra as one SVG."""
    seconds, inside = len(samples) / rate, width - LEFT - RIGHT
    top = [20 + n * (PANEL_HEIGHT + PANEL_GAP) for n in range(3)]
    height = top[-1] + PANEL_HEIGHT + 30
    parts = [
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="Waveform and features">',
        _wave(samples, top[0], inside),
        *(
            f'<text class="unit" x="0" y="{y - 8:g}">{escape(label)}</text>'
            for y, label in zip(top, ["waveform", *labels], strict=True)
        ),
        *(
            f'<image x="{LEFT:g}" y="{y:g}" width="{inside:g}" height="{PANEL_HEIGHT:g}" '
            f'preserveAspectRatio="none" style="image-rendering:pixelated" href="{image}"/>'
            for y, image in zip(top[1:], images, strict=True)
        ),
    ]
    # Time axis below the last panel, about a tick for every 110 units.
    base = top[-1] + PANEL_HEIGHT
    for tick in linear_ticks(0.0, seconds, max(3, round(width / 110))):
        x = LEFT + inside * tick / seconds
        unit = " s" if tick == 0 else ""
        parts.append(
            f'<path class="axis" d="M{x:.1f} {base:g}v4"/><text class="tick" x="{x:.1f}" '
            f'y="{base + 18:g}" text-anchor="middle">{tick:g}{unit}</text>'
        )
    return Markup("".join([*parts, "</svg>"]))


def _wave(samples: np.ndarray, top: float, inside: float) -> str:
    """Draw the envelope of the samples: minimum and maximum of each pixel."""
    # One part of the samples for each pixel.
    columns = np.array_split(samples, min(len(samples), int(inside)))
    scale = PANEL_HEIGHT / 2 / max(float(np.abs(samples).max()), 1e-9)
    middle = top + PANEL_HEIGHT / 2
    step = inside / len(columns)
    upper = [f"{LEFT + n * step:.1f} {middle - scale * c.max():.1f}" for n, c in enumerate(columns)]
    lower = [f"{LEFT + n * step:.1f} {middle - scale * c.min():.1f}" for n, c in enumerate(columns)]
    return f'<path class="wave c0" d="M{"L".join(upper + lower[::-1])}z"/>'


def _png(values: np.ndarray) -> str:
    """Return features [T, F] as a PNG: time to the right, the first feature at the bottom."""
    from matplotlib.image import imsave

    file = io.BytesIO()
    # A few outliers would make the image dark.
    low, high = np.percentile(values, [2, 99.5])
    imsave(file, values.T[::-1], cmap="magma", vmin=low, vmax=max(high, low + 1e-9), format="png")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
