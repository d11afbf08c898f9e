"""Flame graphs: stacks with their time as boxes, the callers above what they call, in an SVG."""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape

from toolkit.processes.sampler import Stacks

WIDTH, ROW, LETTER = 1200.0, 17.0, 6.2  # pixels
LEAST = 0.001
"""Share of the whole below which a box is left out."""
HEAD = 44.0  # pixels above the boxes


@dataclass
class _Box:
    seconds: float = 0.0
    inside: dict[str, "_Box"] = field(default_factory=dict)


def flame_graph(stacks: Stacks, title: str) -> str:
    """Draw stacks as SVG; a box's width is its share of the time, and its tooltip says it in full.

    Args:
      stacks: seconds by stack, see `toolkit.processes.sampler`.
      title: written above.
    """
    whole = _Box()
    for stack, seconds in stacks.items():
        box = whole
        box.seconds += seconds
        for frame in stack:
            box = box.inside.setdefault(frame, _Box())
            box.seconds += seconds
    boxes = list(_boxes(whole, 0.0, 0, whole.seconds or 1.0))
    height = HEAD + ROW * (1 + max((depth for _, _, depth, _, _ in boxes), default=0)) + 8
    drawn = "".join(_drawn(*box, whole.seconds) for box in boxes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height:g}" '
        f'width="{WIDTH:g}" height="{height:g}" font-family="monospace" font-size="10">'
        '<rect width="100%" height="100%" fill="#fbfaf7"/>'
        f'<text x="8" y="18" font-size="14">{escape(title)}</text>'
        f'<text x="8" y="34" fill="#5b6470">{whole.seconds:.1f} s of all threads at work; callers '
        f"are above what they call, and boxes below {100 * LEAST:g} % are left out</text>"
        f"{drawn}</svg>\n"
    )


def _boxes(
    box: _Box, left: float, depth: int, whole: float
) -> Iterator[tuple[str, float, int, float, float]]:
    """Yield frame, left edge, depth, width and seconds of all boxes inside one."""
    for frame, inner in sorted(box.inside.items()):
        width = WIDTH * inner.seconds / whole
        if inner.seconds >= LEAST * whole:
            yield frame, left, depth, width, inner.seconds
            yield from _boxes(inner, left, depth + 1, whole)
        left += width


def _drawn(frame: str, left: float, depth: int, width: float, seconds: float, whole: float) -> str:
    y = HEAD + ROW * depth
    room = int((width - 6) / LETTER)
    shown = frame if len(frame) <= room else f"{frame[: room - 1]}…" if room > 3 else ""
    text = f'<text x="{left + 3:.1f}" y="{y + 12:.1f}">{escape(shown)}</text>' if shown else ""
    share = 100 * seconds / (whole or 1.0)
    return (
        f"<g><title>{escape(frame)}: {seconds:.2f} s, {share:.1f} %</title>"
        f'<rect x="{left:.2f}" y="{y:.1f}" width="{max(0.3, width - 0.4):.2f}" '
        f'height="{ROW - 1:g}" fill="{_colour(frame)}" rx="1"/>{text}</g>'
    )


def _colour(frame: str) -> str:
    """Return a warm colour that depends on the file alone, so that packages look alike."""
    place = frame.rpartition("(")[2].partition("/")[0]
    return f"hsl({zlib.crc32(place.encode()) % 60 + 5},70%,75%)"
