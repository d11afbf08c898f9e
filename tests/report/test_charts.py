"""Line charts."""

import math
import re
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.report.charts import Band, Chart, Ring, Series, Target, linear_ticks, log_ticks, thin


def texts(svg, kind):
    root = ElementTree.fromstring(svg)
    return [node.text for node in root.iter("text") if node.get("class") == kind]


def points(svg, number=0):
    """The pixels of the n-th line."""
    root = ElementTree.fromstring(svg)
    lines = [node for node in root.iter("path") if "line" in node.get("class", "").split()]
    numbers = re.findall(r"-?[\d.]+", lines[number].get("d"))
    return np.array(numbers, dtype=float).reshape(-1, 2)


def chart(**options):
    series = options.pop("series", [Series("a", [0, 1, 2], [1, 10, 100])])
    return Chart("Label & more", "minutes", "percent", series, **options)


def test_equal_ratios_are_equal_distances_on_a_logarithmic_axis():
    ys = points(chart(log_y=True).svg(400, 300))[:, 1]
    assert ys[0] - ys[1] == pytest.approx(ys[1] - ys[2], abs=0.2)
    assert ys[0] > ys[1]  # up is more
    ys = points(chart().svg(400, 300))[:, 1]
    assert ys[1] - ys[2] == pytest.approx(10 * (ys[0] - ys[1]), rel=0.05)


def test_everything_lies_inside_the_drawing_and_text_is_escaped():
    svg = chart(
        log_y=True,
        targets=[Target(10, "TTA(10)"), Target(9.9, "TTA(9.9)"), Target(9.8, "<&>")],
        rings=[Ring(1, 10, 0, "here & now")],
        bands=[Band(-1, 0.5, "compute", "a < b")],
    ).svg(400, 300)
    root = ElementTree.fromstring(svg)  # fails where something is not escaped
    assert root.get("aria-label") == "Label & more"
    pixels = points(svg)
    assert ((pixels >= 0) & (pixels <= [400, 300])).all()
    labels = [node for node in root.iter("text") if node.get("class") == "target"]
    heights = [float(node.get("y")) for node in labels]
    assert all(b - a >= 13 for a, b in pairwise(heights))
    band = next(root.iter("rect"))
    assert float(band.get("x")) >= 40  # clipped at the axis


def test_markers_have_the_values_of_their_point():
    titles = ["first", "second", "third"]
    series = [Series("a", [0, 1, 2], [1, 2, 3], colour=1, markers=True, titles=titles)]
    root = ElementTree.fromstring(chart(series=series).svg(400, 300))
    assert [node.text for node in root.iter("title")] == titles
    many = [Series("a", range(100), range(100), markers=True)]
    assert "marker" not in chart(series=many).svg(400, 300)


@pytest.mark.parametrize("log_y", [True, False])
@pytest.mark.parametrize("series", [[], [Series("a", [], [])], [Series("a", [3], [5])]])
def test_nothing_and_a_single_point_can_be_drawn(series, log_y):
    svg = chart(series=series, log_y=log_y).svg(400, 300)
    assert "nan" not in svg
    ElementTree.fromstring(svg)


@given(st.floats(-1e4, 1e4), st.floats(0.01, 1e4), st.integers(3, 12))
def test_linear_ticks_are_round_even_and_inside(low, width, count):
    ticks = linear_ticks(low, low + width, count)
    assert 1 <= len(ticks) <= 1.5 * count + 2
    assert all(low - 1e-6 * width <= t <= low + width * (1 + 1e-6) for t in ticks)
    steps = np.diff(ticks)
    if len(steps):
        assert steps == pytest.approx(steps[0], rel=1e-6)
        assert f"{steps[0]:.6e}"[0] in "125"


@given(st.floats(1e-3, 1e3), st.floats(1.5, 1e4))
def test_logarithmic_ticks_keep_their_distance(low, ratio):
    ticks = log_ticks(low, low * ratio, 0.2)
    assert all(math.log(b / a) >= 0.2 for a, b in pairwise(ticks))
    if ratio >= 10:
        assert len(ticks) >= 1


@given(st.lists(st.floats(0, 100), min_size=1, max_size=300), st.integers(5, 20))
def test_thinning_keeps_every_stretchs_extremes(values, columns):
    x = np.arange(len(values), dtype=float)
    xs, ys = thin(x, values, columns)
    assert len(xs) <= max(2 * columns + 2, len(values) if len(values) <= 2 * columns else 0)
    assert min(ys) == min(values)
    assert max(ys) == max(values)
    assert (np.diff(xs) > 0).all()
    assert all(values[int(a)] == b for a, b in zip(xs, ys, strict=True))


def test_axis_labels_do_not_run_into_one_another():
    labels = texts(chart(log_y=True, series=[Series("a", [0, 1], [5, 150])]).svg(400, 300), "tick")
    assert "100" in labels
    assert "90" not in labels
