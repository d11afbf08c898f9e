"""Line charts, bars and intervals as inline SVG, in the colours of the page's theme."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

import numpy as np
from markupsafe import Markup

LEFT, RIGHT, TOP, BOTTOM = 46.0, 10.0, 26.0, 30.0
"""Margins in units of the view box; a unit is a pixel at full size."""
SHAPES = ("circle", "square", "triangle", "diamond")
"""Shapes of markers, which tell series or language models apart even without colours."""
MARKED = 60
"""Largest number of points of a series that is drawn with markers."""
LETTER_WIDTH = 7.3
"""Width of a letter of a label in pixels."""
MARKER_SIZE = 5.0
"""Half of the size of an interval's marker in pixels."""
LABELS = 56.0
"""Width in pixels of the column of target labels at the right."""


@dataclass(frozen=True)
class Series:
    """A line of a chart."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int = 0
    """Index into the page's palette and the marker shapes."""
    dashed: bool = False
    faint: bool = False
    """Draw the line thin and pale, as for further runs of a platform."""
    markers: bool = False
    titles: Sequence[str] = ()
    """Tooltips of the markers."""


@dataclass(frozen=True)
class Target:
    """A horizontal line across the chart, with its label at the right end."""

    y: float
    label: str


@dataclass(frozen=True)
class Ring:
    """A circle that highlights a point."""

    x: float
    y: float
    colour: int
    title: str


@dataclass(frozen=True)
class Band:
    """A coloured interval of the x axis."""

    begin: float
    end: float
    kind: str
    """CSS class of its colour."""
    title: str = ""


@dataclass(frozen=True)
class Chart:
    """A line chart; its size is given when it is drawn."""

    label: str
    """Description for screen readers."""
    x_label: str
    y_label: str
    series: Sequence[Series]
    log_y: bool = False
    """Logarithmic y axis; values of 0 or less are drawn at its lower end."""
    targets: Sequence[Target] = ()
    rings: Sequence[Ring] = ()
    bands: Sequence[Band] = ()
    fine: bool = False
    """Draw thin lines, for noisy series."""
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    whole_x: bool = False
    """Label the x axis with integers only."""

    def svg(self, width: float, height: float) -> Markup:
        """Return the chart as SVG with a view box of this size in pixels, which the page scales."""
        return _Drawing(self, width, height).svg()


class _Drawing:
    """A chart drawn at a given size."""

    def __init__(self, chart: Chart, width: float, height: float) -> None:
        self._chart, self._width, self._height = chart, width, height
        # Labels of targets stand to the right of the plot.
        self._right = width - RIGHT - (LABELS if chart.targets else 0.0)
        self._x0, self._x1 = chart.x_range or _range([s.x for s in chart.series], zero=True)
        # Targets must be inside the plot, even if no series reaches them.
        values = [s.y for s in chart.series] + [[t.y for t in chart.targets]]
        if chart.y_range:
            self._y0, self._y1 = chart.y_range
        elif chart.log_y:
            self._y0, self._y1 = _log_range(values)
        else:
            self._y0, self._y1 = _range(values, zero=True)

    def svg(self) -> Markup:
        chart = self._chart
        parts = [
            f'<svg viewBox="0 0 {self._width:g} {self._height:g}" role="img" '
            f'aria-label="{escape(chart.label)}">',
            *map(self._band, chart.bands),
            *self._y_axis(),
            *self._x_axis(),
            *self._targets(),
            *map(self._line, chart.series),
            *(drawn for series in chart.series for drawn in self._markers(series)),
            *map(self._ring, chart.rings),
            "</svg>",
        ]
        return Markup("".join(parts))

    def _x(self, value: float) -> float:
        """Return the horizontal position of a value in pixels."""
        share = (value - self._x0) / ((self._x1 - self._x0) or 1.0)
        return LEFT + share * (self._right - LEFT)

    def _y(self, value: float) -> float:
        """Return the vertical position of a value in pixels."""
        if self._chart.log_y:
            low, high = math.log(self._y0), math.log(self._y1)
            # 0 has no logarithm: a value below the axis is drawn at its lower end.
            value = math.log(max(value, self._y0 * 1e-3))
        else:
            low, high = self._y0, self._y1
        # SVG's y axis points down.
        share = min(1.0, max(0.0, (value - low) / ((high - low) or 1.0)))
        return self._height - BOTTOM - share * (self._height - TOP - BOTTOM)

    def _band(self, band: Band) -> str:
        begin, end = (self._x(min(max(t, self._x0), self._x1)) for t in (band.begin, band.end))
        return (
            f'<rect class="band {band.kind}" x="{begin:.1f}" y="{TOP:g}" '
            f'width="{max(0.5, end - begin):.1f}" height="{self._height - TOP - BOTTOM:g}">'
            f"<title>{escape(band.title)}</title></rect>"
        )

    def _y_axis(self) -> list[str]:
        pixels = self._height - TOP - BOTTOM
        if self._chart.log_y:
            # At least 22 pixels between labels.
            ticks = log_ticks(self._y0, self._y1, 22 * math.log(self._y1 / self._y0) / pixels)
        else:
            # A label for every 48 pixels or so.
            ticks = linear_ticks(self._y0, self._y1, max(3, round(pixels / 48)))
        parts = [f'<text class="unit" x="0" y="12">{escape(self._chart.y_label)}</text>']
        for value in ticks:
            y = self._y(value)
            parts.append(
                f'<path class="grid" d="M{LEFT:g} {y:.1f}H{self._right:g}"/>'
                f'<text class="tick" x="{LEFT - 8:g}" y="{y + 4:.1f}" text-anchor="end">'
                f"{number(value)}</text>"
            )
        return parts

    def _x_axis(self) -> list[str]:
        base = self._height - BOTTOM
        parts = [f'<path class="axis" d="M{LEFT:g} {base:g}H{self._right:g}"/>']
        # The unit stands at the end of the axis; 6.5 pixels are the mean width of a letter.
        unit_begins = self._right - 6.5 * len(self._chart.x_label) - 8
        for value in linear_ticks(self._x0, self._x1, max(3, round(self._width / 90))):
            x = self._x(value)
            if self._chart.whole_x and value != round(value):
                continue
            if x + 3.5 * len(number(value)) < unit_begins:
                parts.append(
                    f'<path class="axis" d="M{x:.1f} {base:g}v4"/>'
                    f'<text class="tick" x="{x:.1f}" y="{base + 18:g}" text-anchor="middle">'
                    f"{number(value)}</text>"
                )
        parts.append(
            f'<text class="unit" x="{self._right:g}" y="{base + 18:g}" '
            f'text-anchor="end">{escape(self._chart.x_label)}</text>'
        )
        return parts

    def _targets(self) -> list[str]:
        """Draw the targets with labels at the right that do not overlap."""
        parts, above = [], -math.inf
        for target in sorted(self._chart.targets, key=lambda target: -target.y):
            y = self._y(target.y)
            # 14 pixels are the height of a line.
            above = max(y, above + 14)
            parts.append(
                f'<path class="target" d="M{LEFT:g} {y:.1f}H{self._right:g}"/>'
                f'<text class="target" x="{self._right + 8:g}" y="{above + 4:.1f}">'
                f"{escape(target.label)}</text>"
            )
        return parts

    def _line(self, series: Series) -> str:
        # More points than pixels only make the page larger.
        xs, ys = thin(series.x, series.y, round(self._right - LEFT))
        if not len(xs):
            return ""
        points = "L".join(f"{self._x(x):.1f} {self._y(y):.1f}" for x, y in zip(xs, ys, strict=True))
        style = " dashed" * series.dashed + " faint" * series.faint
        style += " fine" * self._chart.fine
        return f'<path class="line c{series.colour % 8}{style}" d="M{points}"/>'

    def _markers(self, series: Series) -> list[str]:
        if not series.markers or len(series.x) > MARKED:
            return []
        titles = series.titles or [series.name] * len(series.x)
        shape = SHAPES[series.colour % len(SHAPES)]
        size = 2.4 if series.faint else 3.4
        return [
            marker(shape, self._x(x), self._y(y), size, f"c{series.colour % 8}", title)
            for x, y, title in zip(series.x, series.y, titles, strict=True)
        ]

    def _ring(self, ring: Ring) -> str:
        return (
            f'<circle class="ring c{ring.colour % 8}" cx="{self._x(ring.x):.1f}" '
            f'cy="{self._y(ring.y):.1f}" r="6"><title>{escape(ring.title)}</title></circle>'
        )


def marker(shape: str, x: float, y: float, r: float, colour: str, title: str) -> str:
    """Return a marker as SVG.

    Args:
      shape: one of `SHAPES`.
      x: horizontal position of its middle in pixels.
      y: vertical position of its middle in pixels.
      r: half of its size in pixels.
      colour: CSS class of its colour.
      title: text that is shown when a pointer rests on it.
    """
    path = {
        "circle": f"M{x - r:.1f} {y:.1f}a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0 {-2 * r} 0",
        "square": f"M{x - r:.1f} {y - r:.1f}h{2 * r}v{2 * r}h{-2 * r}z",
        "triangle": f"M{x:.1f} {y - 1.3 * r:.1f}l{1.3 * r:.1f} {2.2 * r:.1f}h{-2.6 * r:.1f}z",
        "diamond": f"M{x:.1f} {y - 1.4 * r:.1f}l{1.4 * r:.1f} {1.4 * r:.1f}"
        f"l{-1.4 * r:.1f} {1.4 * r:.1f}l{-1.4 * r:.1f} {-1.4 * r:.1f}z",
    }[shape]
    return f'<path class="marker {colour}" d="{path}"><title>{escape(title)}</title></path>'


@dataclass(frozen=True)
class Interval:
    """A value with its confidence interval, as one row of a figure."""

    name: str
    value: float
    low: float | None
    high: float | None
    colour: int
    """Index into the page's palette."""
    shape: str
    """One of `SHAPES`."""
    title: str
    """The tooltip, after the name."""


def interval_svg(intervals: Sequence[Interval], width: float, label: str) -> Markup:
    """Draw intervals one per row: name at the left, value at the right, the lowest value in bold.

    Args:
      intervals: at least one.
      width: width of the drawing in pixels.
      label: description for screen readers.
    """
    # Names to the left of `axis_begin`, values to the right of `axis_end`.
    axis_begin = min(
        0.45 * width, 4 * MARKER_SIZE + LETTER_WIDTH * max(len(i.name) for i in intervals)
    )
    value_width = LETTER_WIDTH * max(len(f"{i.value:.2f}") for i in intervals)
    axis_end, step, top = width - value_width - 3 * MARKER_SIZE, 26.0, 8.0
    # The axis begins at 0 and ends at the highest upper limit.
    x_max = max(i.value if i.high is None else i.high for i in intervals) or 1.0
    base = top + step * len(intervals)
    max_letters = int((axis_begin - 3 * MARKER_SIZE) / LETTER_WIDTH)

    def x(value: float) -> float:
        return axis_begin + (axis_end - axis_begin) * value / x_max

    lowest = min(i.value for i in intervals)
    parts = [f'<svg viewBox="0 0 {width:g} {base + 24:g}" role="img" aria-label="{escape(label)}">']
    for tick in linear_ticks(0.0, x_max, max(3, round((axis_end - axis_begin) / 80))):
        parts.append(
            f'<path class="grid" d="M{x(tick):.1f} {top:g}V{base:g}"/><text class="tick" '
            f'x="{x(tick):.1f}" y="{base + 18:g}" text-anchor="middle">{tick:g}</text>'
        )
    for n, interval in enumerate(intervals):
        y, colour = top + step * (n + 0.5), f"c{interval.colour % 8}"
        name = interval.name
        name = name if len(name) <= max_letters else f"{name[: max_letters - 1]}…"
        if interval.low is not None and interval.high is not None:
            parts.append(
                f'<path class="whisker {colour}" d="M{x(interval.low):.1f} {y:g}'
                f'H{x(interval.high):.1f}"/>'
            )
        title = f"{interval.name}: {interval.title}"
        bold = " best" if interval.value == lowest else ""
        parts.append(
            f'<text class="label{bold}" x="0" y="{y + 4:g}">{escape(name)}</text>'
            f"{marker(interval.shape, x(interval.value), y, MARKER_SIZE, colour, title)}"
            f'<text class="label{bold}" x="{width:g}" y="{y + 4:g}" text-anchor="end">'
            f"{interval.value:.2f}</text>"
        )
    return Markup("".join([*parts, "</svg>"]))


def histogram_svg(
    counts: Sequence[int] | np.ndarray, edges: np.ndarray, width: float, label: str
) -> Markup:
    """Draw a histogram of durations.

    Args:
      counts: [B] number of utterances in each bin.
      edges: [B + 1] ends of the bins in seconds.
      width: width of the drawing in pixels.
      label: description for screen readers.
    """
    bins = len(counts)
    height, base, step, largest = 150.0, 126.0, width / bins, max(counts)
    bars = "".join(
        f'<rect class="column c0" x="{n * step + 0.8:.1f}" y="{base - bar:.1f}" '
        f'width="{step - 1.6:.1f}" height="{bar:.1f}"><title>{begin:.1f} to {end:.1f} s: '
        f"{count:,} utterances</title></rect>"
        for n, (count, begin, end) in enumerate(zip(counts, edges[:-1], edges[1:], strict=True))
        if (bar := 116.0 * count / largest) > 0
    )
    labels = "".join(
        f'<text class="tick" x="{width * share:g}" y="144" text-anchor="{anchor}">{value:.1f}'
        f"{' s' if share == 1 else ''}</text>"
        for share, anchor, value in zip(
            (0, 0.5, 1), ("start", "middle", "end"), edges[[0, bins // 2, bins]], strict=True
        )
    )
    return Markup(
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(label)}">'
        f'{bars}<path class="axis" d="M0 {base:g}H{width:g}"/>{labels}</svg>'
    )


def thin(
    x: Sequence[float], y: Sequence[float], columns: int
) -> tuple[Sequence[float], Sequence[float]]:
    """Thin out a line: keep the lowest and highest point in each of `columns` intervals of x.

    x must not decrease. The drawn line looks the same, dips included.
    """
    # xs, ys: [P], a value per point.
    xs, ys = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if len(xs) <= 2 * columns:
        return x, y
    share = (xs - xs[0]) / ((xs[-1] - xs[0]) or 1.0)
    # [P] pixel column of each point; a column ends where the next point is in another column.
    interval_of = np.minimum(share * columns, columns - 1).astype(int)
    ends = np.flatnonzero(np.diff(interval_of, append=columns)) + 1
    indices = {0, len(xs) - 1}
    for begin, end in zip(np.concatenate([[0], ends[:-1]]), ends, strict=True):
        interval_ys = ys[begin:end]
        indices |= {begin + int(np.argmin(interval_ys)), begin + int(np.argmax(interval_ys))}
    chosen = sorted(indices)
    return xs[chosen].tolist(), ys[chosen].tolist()


def linear_ticks(low: float, high: float, count: int) -> list[float]:
    """Return about `count` round numbers from low to high: multiples of 1, 2 or 5 times 10^n."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    # The power of ten below the desired distance
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * unit for factor in (1, 2, 5, 10, 20) if factor * unit >= rough * 0.7)
    # 1e-9: a limit that differs from a tick only by rounding still gets its label.
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(n * step, 10) for n in range(first, last + 1)]


def log_ticks(low: float, high: float, gap: float) -> list[float]:
    """Return round numbers from low to high whose natural logarithms differ by at least `gap`."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks: list[float] = []
    # The densest set of ticks whose labels do not overlap.
    for factors in ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        ticks = [round(f * 10.0**d, 10) for d in decades for f in factors]
        ticks = [t for t in ticks if low * 0.999 <= t <= high * 1.001]
        if all(math.log(b / a) >= gap for a, b in pairwise(ticks)):
            break
    return ticks


def number(value: float) -> str:
    """Format the label of a tick, such as 1,600 or 0.05."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def _range(values: Sequence[Sequence[float]], zero: bool) -> tuple[float, float]:
    """Return the range of a linear axis, with room above the highest value.

    Args:
      values: values of each series.
      zero: whether the range includes 0.
    """
    finite = [v for series_values in values for v in series_values if math.isfinite(v)]
    if not finite:
        return 0.0, 1.0
    low, high = min(finite), max(finite)
    low = min(0.0, low) if zero else low
    # 6 % of room above the highest point.
    return low, high + 0.06 * (high - low) or low + 1.0


def _log_range(values: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the range of a logarithmic axis for these values, with room at both ends."""
    positive = [v for series_values in values for v in series_values if math.isfinite(v) and v > 0]
    if not positive:
        return 1.0, 10.0
    low, high = min(positive), max(positive)
    # 15 % of room on both sides; a single value lies within a factor of two.
    return low / 1.15, high * 1.15 if high > low else low * 2
