"""The block diagram of a system and its layers, from the run log's description (A30, A41)."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

from toolkit.tta.runs import Platform
from toolkit.tta.texts import devices, processors

Where = Literal["storage", "processors", "devices", ""]
WIDE, NARROW = (760, 5), (340, 2)
"""Width of a drawing in pixels, and boxes in a row."""
GAP, HEIGHT, ROW = 22, 44, 62
LONGEST = 22
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
    """The hardware that does it."""


def system_figure(platform: Platform) -> str:
    """Draw the system of a platform's first run: features, acoustic model, language model, layers.

    Empty where the log does not describe it, as in those of earlier versions.
    """
    about = platform.first.log.created.about or {}
    system, machine = about.get("system"), about.get("machine") or {}
    if not system:
        return ""
    computing: Where = "devices" if machine.get("devices") else "processors"
    chains = {
        "Features": _features(system),
        "Acoustic model": _acoustic_model(system, platform.first.log.created.devices, computing),
        "Language model": _language_model(system, about.get("settings") or {}),
        "Layers of the network": [
            Block(text, small, computing) for text, small in system["layers"]
        ],
    }
    drawn = "".join(
        f'<div class="{name}">{_svg(platform.name, chains, *size)}</div>'
        for name, size in (("wide", WIDE), ("narrow", NARROW))
    )
    found = {
        "storage": machine.get("storage") or "",
        "processors": processors(machine),
        "devices": devices(machine),
    }
    items = "".join(
        f'<li><i class="patch c{COLOURS[where]}"></i>{where}: {escape(text)}</li>'
        for where, text in found.items()
        if text
    )
    title = f"From audio to text on {escape(platform.name)}"
    return f'<figure><h3>{title}</h3><ul class="key">{items}</ul>{drawn}</figure>'


def _features(system: dict[str, Any]) -> list[Block]:
    return [
        Block("audio", "", "storage"),
        Block("front end", f"{system['values']} values per frame", "processors"),
        Block("features", "", "storage"),
        Block("records", "with labels", "storage"),
    ]


def _acoustic_model(system: dict[str, Any], replicas: int, computing: Where) -> list[Block]:
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
    search, _, rest = str(settings.get("evaluation", "")).partition(", ")
    return [
        Block("log-probabilities", f"of {system['units']} outputs", "processors"),
        Block(f"search: {search}", rest.partition(", ")[0], "processors"),
        Block("text", "WER, CER", "processors"),
    ]


def _svg(name: str, chains: dict[str, Sequence[Block]], width: int, most: int) -> str:
    """Draw chains of boxes below each other, each under its title."""
    parts, y = [], 0.0
    box = (width - GAP * (most - 1)) / most
    for title, blocks in chains.items():
        parts.append(f'<text class="label small" x="0" y="{y + 12:g}">{escape(title)}</text>')
        for number, block in enumerate(blocks):
            row, column = divmod(number, most)
            x, top = column * (box + GAP), y + 20 + ROW * row
            parts.append(_block(block, x, top, box))
            if number + 1 == len(blocks):
                continue
            if column + 1 < most:
                parts.append(_arrow(x + box, top + HEIGHT / 2, GAP, 0))
            else:
                parts.append(_arrow(x + box / 2, top + HEIGHT, -(width - box), ROW - HEIGHT))
        y += 20 + ROW * -(-len(blocks) // most) + 6
    return (
        f'<svg viewBox="0 0 {width} {y:g}" role="img" aria-label="Block diagram of {escape(name)}">'
        f"{''.join(parts)}</svg>"
    )


def _block(block: Block, x: float, y: float, width: float) -> str:
    hue = f" c{COLOURS[block.where]}" if block.where else ""
    lines = [(block.text, ""), (block.small, " small")] if block.small else [(block.text, "")]
    first = y + HEIGHT / 2 + (4 if len(lines) == 1 else -4)
    texts = "".join(
        f'<text class="label{kind}" x="{x + width / 2:.5g}" y="{first + 16 * n:g}" '
        f'text-anchor="middle">{escape(_short(text))}</text>'
        for n, (text, kind) in enumerate(lines)
    )
    whole = f"<title>{escape(', '.join(text for text, _ in lines))}</title>"
    return (
        f'<g>{whole}<rect class="box-shape placed{hue}" x="{x:.5g}" y="{y:g}" width="{width:.5g}" '
        f'height="{HEIGHT}" rx="5"/>{texts}</g>'
    )


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1].rstrip()}…"


def _arrow(x: float, y: float, right: float, down: float) -> str:
    """Draw an arrow: to the right, or down and back to the first box of the next row."""
    if not down:
        return f'<path class="wire" d="M{x:.5g} {y:g}h{right - 5:g}m-4 -4l4 4l-4 4"/>'
    half = down / 2
    return (
        f'<path class="wire" d="M{x:.5g} {y:g}v{half:g}h{right:.5g}v{half - 2:g}m-4 -4l4 4l4 -4"/>'
    )
