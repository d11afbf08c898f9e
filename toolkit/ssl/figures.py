"""Figures about a teacher's targets, as PNG."""

import io
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

BLUE, ORANGE, GREY = "#2a6fbb", "#d9722b", "#888888"


def choice_of_k_figure(rows: Sequence[Mapping[str, float]]) -> bytes:
    """Draw the fields of `toolkit.ssl.choice_of_k.Row` against k: storage, errors, loss."""
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    ks = [row["k"] for row in rows]

    def panel(number: int, title: str, down_to: float, **lines: Sequence[float]) -> None:
        axes = figure.add_subplot(1, 3, number)
        for colour, (label, values) in zip((BLUE, ORANGE), lines.items(), strict=False):
            axes.plot(ks, values, "o-", color=colour, label=label.replace("_", " "))
        axes.set_xscale("log")
        axes.set_xticks(ks, [f"{k:g}" for k in ks])
        axes.minorticks_off()
        axes.set_xlabel("k, logits stored per frame")
        axes.set_title(title, fontsize=10)
        axes.grid(color="#e5e5e5")
        if len(lines) > 1:
            axes.legend(frameon=False)
        if down_to:
            axes.set_yscale("symlog", linthresh=down_to)
            axes.set_ylim(bottom=0)
        else:
            axes.set_yscale("log")

    panel(1, "Storage, MB per hour of audio", 0, storage=[r["bytes_per_hour"] / 1e6 for r in rows])
    panel(
        2,
        "Error per frame",
        1e-4,
        tail_mass=[row["tail_mass"] for row in rows],
        total_variation=[row["reconstruction_error"] for row in rows],
    )
    changes = [100 * abs(row["loss_change"]) for row in rows]
    panel(3, "Change of the student's loss in %", 1e-2, change=changes)
    return _png(figure)


def reliability_figure(
    bins: Mapping[str, Sequence[tuple[int, float, float]]], errors: Mapping[str, float]
) -> bytes:
    """Draw reliability diagrams side by side, with the share of frames of each bin.

    Args:
      bins: by title: (frames, mean confidence, accuracy) of bins of equal width from 0 to 1; empty
        bins have 0 frames.
      errors: by title, the expected calibration error.
    """
    figure = Figure(figsize=(4.6 * len(bins), 4.4), layout="constrained")
    for number, (title, found) in enumerate(bins.items(), 1):
        axes = figure.add_subplot(1, len(bins), number)
        frames, confidence, accuracy = np.array(found, dtype=float).T
        width = 1 / len(found)
        left = np.arange(len(found)) * width
        some = frames > 0
        bar = {"width": width, "align": "edge", "edgecolor": "white"}
        axes.bar(left[some], accuracy[some], color=BLUE, label="correct", **bar)
        axes.plot(confidence[some], accuracy[some], "o", color=ORANGE, markersize=4)
        axes.step(
            np.append(left, 1.0),
            np.append(frames, frames[-1:]) / max(frames.sum(), 1),
            where="post",
            color=GREY,
            label="share of frames",
        )
        axes.plot([0, 1], [0, 1], "--", color="black", linewidth=1)
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="highest posterior", ylabel="accuracy")
        axes.set_title(f"{title}: ECE {100 * errors[title]:.2f} %", fontsize=10)
        axes.legend(frameon=False, loc="upper left")
    return _png(figure)


def _png(figure: Figure) -> bytes:
    stream = io.BytesIO()
    FigureCanvasAgg(figure).print_png(stream)
    return stream.getvalue()
