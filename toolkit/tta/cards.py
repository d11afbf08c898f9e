"""Cards of the platforms: results, hardware and topology of each (A30)."""

from collections.abc import Sequence
from html import escape
from typing import Any

from toolkit.tta.rules import TtaConfig
from toolkit.tta.runs import Platform
from toolkit.tta.tables import NAMES, duration, minutes
from toolkit.tta.texts import devices, processors


def result_cards(platforms: Sequence[Platform], config: TtaConfig) -> str:
    """Make a card per platform, with its TTA of the hardest CER that any platform reached."""
    reached = [
        target
        for target in config.targets
        if any(platform.tta(*target, config.epochs) is not None for platform in platforms)
    ]
    hardest = max(reached, key=lambda target: (target[0] == "cer", -target[1]), default=None)
    inside = "".join(_result(platform, n, hardest, config) for n, platform in enumerate(platforms))
    return f'<div class="cards">{inside}</div>'


def _result(
    platform: Platform, colour: int, target: tuple[str, float] | None, config: TtaConfig
) -> str:
    run, price = platform.first, platform.price
    big = ""
    if target is not None:
        tta = platform.tta(*target, config.epochs)
        accuracy = f"{NAMES[target[0]]} {target[1]:g} %"
        words = f"min to {accuracy}" if tta is not None else f"never reached {accuracy}"
        big = f'<p class="big"><b>{minutes(tta)}</b><span>{words}</span></p>'
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
    return _card(platform.name, colour, big, facts)


def machine_cards(platforms: Sequence[Platform]) -> str:
    """Make a card per platform, with its machine, settings and topology (A30)."""
    inside = []
    for colour, platform in enumerate(platforms):
        created = platform.first.log.created
        about = created.about or {}
        machine = about.get("machine") or {}
        facts = [
            ("processor", processors(machine)),
            ("threads", str(machine.get("torch_threads") or "")),
            ("devices", devices(machine)),
            ("memory", f"{machine['memory_gib']} GiB" if machine.get("memory_gib") else ""),
            ("storage", machine.get("storage") or ""),
            ("system", machine.get("os") or ""),
            ("model", f"{created.parameters / 1e6:.2f} M parameters"),
            *((str(k), str(v)) for k, v in (about.get("settings") or {}).items()),
            ("note", platform.price.note if platform.price else ""),
        ]
        inside.append(_card(platform.name, colour, _topology(machine), facts))
    return f'<div class="cards">{"".join(inside)}</div>'


def _card(name: str, colour: int, top: str, facts: Sequence[tuple[str, str]]) -> str:
    listed = "".join(
        f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in facts if value
    )
    return f'<div class="card c{colour % 8}"><h3>{escape(name)}</h3>{top}<dl>{listed}</dl></div>'


def _topology(machine: dict[str, Any]) -> str:
    """Draw the connections of processors, memory and devices; empty without devices."""
    found = machine.get("devices") or []
    if not found:
        return ""
    height = max(104, 46 * len(found))
    middle = height / 2
    parts = [
        f'<path class="wire" d="M60 {middle - 6:g}v12"/>',
        _box(0, middle - 48, 120, 42, f"{machine.get('memory_gib', '?')} GiB", "memory"),
        _box(0, middle + 6, 120, 42, f"{machine.get('sockets') or 1} x CPU", _cores(machine)),
    ]
    for number, device in enumerate(found):
        y = height * (number + 0.5) / len(found)
        parts.append(
            f'<path class="wire" style="stroke-width:{_link_width(device["link"]):.1f}" '
            f'd="M120 {middle + 27:g}C 150 {middle + 27:g} 140 {y:g} 172 {y:g}"/>'
        )
        below = ", ".join(filter(None, [f"{device['memory_gib']:g} GiB", device["link"]]))
        parts.append(_box(172, y - 20, 148, 40, device["name"], below))
    return (
        f'<svg viewBox="0 0 320 {height:g}" role="img" aria-label="Topology">{"".join(parts)}</svg>'
    )


def _cores(machine: dict[str, Any]) -> str:
    return f"{machine['cores']} cores" if machine.get("cores") else ""


def _link_width(link: str) -> float:
    """Return the width of a drawn link in pixels: from 1 for `x1` to 5 for `x16`."""
    lanes = link.rpartition("x")[2]
    return min(5.0, 0.75 + int(lanes) / 4) if lanes.isdigit() else 1.5


def _box(x: float, y: float, width: float, height: float, text: str, small: str = "") -> str:
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
