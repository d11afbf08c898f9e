"""Evaluation of a teacher: calibration of its posteriors, and how many logits per frame suffice.

The student learns from posteriors instead of transcripts with confidences. This is sound if the
posteriors are calibrated (C10): of the frames whose best senone has probability p, a share p must
be correct. Only the k best logits of each frame are stored (C11).
"""

import io
import json
import math
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import torch
from lhotse.array import Array
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional

from toolkit.features.low_frame_rate import centre, low_rate_length, stack
from toolkit.features.normalise import Cmvn
from toolkit.features.shards import FeatureStore, TarWriter
from toolkit.models.scorer import batch_logits
from toolkit.models.store import load_model
from toolkit.processes.bars import Bar
from toolkit.ssl.config import CalibrationConfig, ChoiceConfig
from toolkit.ssl.targets import KBest, TargetError, k_best
from toolkit.storage.files import write_atomically
from toolkit.train.batches import slices_within
from toolkit.train.corpus import Alignments
from toolkit.train.cross_entropy import distillation_losses
from toolkit.train.optimizer import exponential_rate

BLUE, ORANGE, GREY = "#2a6fbb", "#d9722b", "#888888"
FRAMES_PER_BATCH = 4096
"""Low-rate frames that are computed at once, including padding."""
BINS = 15
"""Number of bins of equal width (Guo et al. 2017: 15)."""
TEMPERATURES = tuple(2 ** (step / 12) for step in range(-24, 25))
"""Temperatures tried: 1/4 to 4, 6 % apart, including 1."""
TOLERANCE = 0.01
"""Changes of the student's loss that are relatively smaller than this are negligible."""
HELD_OUT_EVERY = 3
"""Every third utterance is held out to measure the student's loss."""
STEPS, FRAMES_PER_STEP = 300, 1024
"""Steps of the training of an output layer, and frames drawn for each step."""
RATES = 2e-2, 2e-4
"""Initial and final learning rate of Adam. Training a layer of 256 x 242 takes two seconds.
Twice the steps made its loss 0.6 % lower; the loss with k = 20 was then 1.1 % above that with all
senones, instead of 1.0 %."""
STEPS_BETWEEN_MEASUREMENTS = 20
"""Steps after which the held-out loss is measured; the lowest counts."""


def choice_of_k_figure(rows: Sequence[Mapping[str, float]]) -> bytes:
    """Return a PNG that plots storage, errors and loss against k; a row has the fields of `Row`."""
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    ks = [row["k"] for row in rows]

    def panel(number: int, title: str, down_to: float, **lines: Sequence[float]) -> None:
        # Logarithmic axes; if `down_to` is not 0, the y axis is linear from 0 to `down_to`
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
    """Return a PNG of reliability diagrams side by side, with each bin's share of the frames.

    Args:
      bins: by title: (frames, mean confidence, accuracy) of bins of equal width from 0 to 1; empty
        bins have 0 frames.
      errors: by title, the expected calibration error.
    """
    figure = Figure(figsize=(4.6 * len(bins), 4.4), layout="constrained")
    for number, (title, rows) in enumerate(bins.items(), 1):
        axes = figure.add_subplot(1, len(bins), number)
        frames, confidence, accuracy = np.array(rows, dtype=float).T  # [bins] each
        width = 1 / len(rows)
        left = np.arange(len(rows)) * width
        has_frames = frames > 0
        style = {"width": width, "align": "edge", "edgecolor": "white"}
        axes.bar(left[has_frames], accuracy[has_frames], color=BLUE, label="correct", **style)
        axes.plot(confidence[has_frames], accuracy[has_frames], "o", color=ORANGE, markersize=4)
        axes.step(
            np.append(left, 1.0),
            np.append(frames, frames[-1:]) / max(frames.sum(), 1),
            where="post",
            color=GREY,
            label="share of frames",
        )
        # The diagonal: perfect calibration
        axes.plot([0, 1], [0, 1], "--", color="black", linewidth=1)
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="highest posterior", ylabel="accuracy")
        axes.set_title(f"{title}: ECE {100 * errors[title]:.2f} %", fontsize=10)
        axes.legend(frameon=False, loc="upper left")
    return _png(figure)


def _png(figure: Figure) -> bytes:
    """Return a figure as PNG."""
    stream = io.BytesIO()
    FigureCanvasAgg(figure).print_png(stream)
    return stream.getvalue()


@dataclass(frozen=True)
class TrainedModel:
    """A trained model and the normaliser of its features."""

    model: Path
    """Folder of the model."""
    normaliser: Path
    """File of the normaliser."""
    device: str = "cpu"
    """Device on which the model computes."""

    def load(self) -> tuple[nn.Module, Cmvn]:
        """Load model and normaliser."""
        return load_model(self.model).to(self.device), Cmvn.load(self.normaliser)


def compute_logits(
    models: Sequence[tuple[nn.Module, Cmvn]], store: FeatureStore, names: Iterable[str]
) -> Iterator[tuple[str, list[Tensor]]]:
    """Compute the logits of several models on the same utterances, at offset 0.

    Args:
      models: each with the normaliser of its features.
      store: raw features.
      names: ids of utterances that have frames.

    Yields:
      Utterance id and each model's logits, [T, C] float32, on the CPU; from the longest utterance
      to the shortest, to reduce padding.
    """
    ordered = sorted(names, key=lambda name: (-store.num_frames(name), name))
    lengths = [low_rate_length(store.num_frames(name)) for name in ordered]
    for rows in slices_within(lengths, FRAMES_PER_BATCH):
        batch = ordered[rows]
        raw = [(store.load(name), store.cmn_state(name)) for name in batch]
        logits_by_model = [
            batch_logits(model, [stack(normaliser.apply(x, state)) for x, state in raw])
            for model, normaliser in models
        ]
        for number, name in enumerate(batch):
            yield name, [logits[number].float().cpu() for logits in logits_by_model]


def sample_utterances(names: Iterable[str], number: int) -> list[str]:
    """Sample utterances by a checksum of their ids."""
    ranked = sorted(names, key=lambda name: (zlib.crc32(name.encode()), name))
    return ranked[:number]


class Reliability:
    """Reliability diagram: frames binned by the probability of their best senone."""

    def __init__(self) -> None:
        self.frames = np.zeros(BINS, dtype=np.int64)
        """[BINS]: number of frames."""
        self.confidence = np.zeros(BINS)
        """[BINS]: sum of the probabilities."""
        self.correct = np.zeros(BINS)
        """[BINS]: number of frames whose best senone is correct."""

    def add(self, confidence: np.ndarray, correct: np.ndarray) -> None:
        """Add frames: [T] probability of the best senone, [T] whether it is correct."""
        # Bin of each frame; a confidence of 1 belongs to the last
        index = np.minimum((confidence * BINS).astype(int), BINS - 1)
        self.frames += np.bincount(index, minlength=BINS)
        self.confidence += np.bincount(index, confidence, minlength=BINS)
        self.correct += np.bincount(index, correct, minlength=BINS)

    @property
    def error(self) -> float:
        """The expected calibration error (ECE), 0 to 1."""
        # sum over bins b of n_b / n |accuracy_b - confidence_b|; n_b of the n frames are in bin b
        # (Guo et al. 2017, equation 3)
        return float(np.abs(self.confidence - self.correct).sum() / self.frames.sum())

    def rows(self) -> list[tuple[int, float, float]]:
        """Return (frames, mean confidence, accuracy) of every bin."""
        number = np.maximum(self.frames, 1)
        columns = self.frames, self.confidence / number, self.correct / number
        return [(int(n), float(c), float(r)) for n, c, r in zip(*columns, strict=True)]


class TemperatureSweep:
    """Negative log-likelihood and reliability of logits at each of the temperatures."""

    def __init__(self) -> None:
        self.frames = 0
        self.correct = 0
        self.loss = np.zeros(len(TEMPERATURES))
        """[TEMPERATURES]: negative log-likelihood, summed over the frames."""
        self.reliability = [Reliability() for _ in TEMPERATURES]

    def add(self, logits: Tensor, targets: Tensor) -> None:
        """Add frames: logits [T, C] and the reference senones [T]."""
        logits = logits.double()
        highest, best = logits.max(dim=-1)  # [T] each
        correct = (best == targets).cpu().numpy()
        reference = logits.gather(1, targets[:, None])[:, 0]
        self.frames += len(targets)
        self.correct += int(correct.sum())
        for number, temperature in enumerate(TEMPERATURES):
            # -log softmax(z / T)_target = log sum_c exp(z_c / T) - z_target / T
            log_sum = (logits / temperature).logsumexp(dim=-1)
            self.loss[number] += float((log_sum - reference / temperature).sum())
            confidence = (highest / temperature - log_sum).exp().cpu().numpy()
            self.reliability[number].add(confidence, correct)

    def summary(self) -> dict[str, float]:
        """Return the results at temperature 1 and at the temperature with the highest likelihood.

        The keys are those that `measure_calibration` returns.
        """
        unchanged, best = TEMPERATURES.index(1.0), int(self.loss.argmin())
        return {
            "frames": self.frames,
            "frame_accuracy": self.correct / self.frames,
            "ece": self.reliability[unchanged].error,
            "nll": float(self.loss[unchanged]) / self.frames,
            "temperature": TEMPERATURES[best],
            "ece_at_temperature": self.reliability[best].error,
            "nll_at_temperature": float(self.loss[best]) / self.frames,
        }


def measure_calibration(
    teacher: TrainedModel,
    features: Path,
    alignments: Alignments,
    config: CalibrationConfig,
    out: Path,
) -> dict[str, float]:
    """Measure the calibration of a teacher on aligned data that it was not trained on.

    Args:
      teacher: the model.
      features: a feature store of held-out data.
      alignments: reference senones of the raw frames; utterances without alignment are left out.
      config: amount of data.
      out: gets `calibration.json` (the summary, and the bins at temperature 1) and
        `reliability.png`.

    Returns:
      `frames`, `frame_accuracy`, `ece` (expected calibration error) and `nll` (negative
      log-likelihood per frame, natural logarithm); `temperature`, the divisor of the logits that
      gives the lowest `nll`, to within 6 %; `ece_at_temperature` and `nll_at_temperature`.

    Raises:
      TargetError: no utterance is aligned, or the alignment does not fit the teacher.
    """
    # 1. Sum over the frames of a sample of the aligned utterances.
    store, aligned = FeatureStore(features), set(alignments.ids)
    usable = [name for name in store.ids if name in aligned and store.num_frames(name)]
    names = sample_utterances(usable, config.utterances)
    sums = TemperatureSweep()
    computed = compute_logits([teacher.load()], store, names)
    for name, (logits,) in Bar(computed, "posteriors", len(names)):
        sums.add(logits, _targets(name, alignments, store.num_frames(name), logits.shape[1]))
    if not sums.frames:
        raise TargetError(
            f"no utterance of {features} is aligned: align some utterances to use them as "
            "references"
        )
    # 2. Write the results, at temperature 1 and at the best one.
    summary = sums.summary()
    unchanged = sums.reliability[TEMPERATURES.index(1.0)]
    best = sums.reliability[TEMPERATURES.index(summary["temperature"])]
    diagrams = {"Unchanged": unchanged, f"Temperature {summary['temperature']:.2f}": best}
    content = {**summary, "bins": unchanged.rows()}
    write_atomically(out / "calibration.json", json.dumps(content, indent=1) + "\n")
    figure = reliability_figure(
        {title: reliability.rows() for title, reliability in diagrams.items()},
        {title: reliability.error for title, reliability in diagrams.items()},
    )
    write_atomically(out / "reliability.png", figure)
    return summary


def _targets(name: str, alignments: Alignments, frames: int, senones: int) -> Tensor:
    """Return the reference senones [T'] of the low-rate frames at offset 0."""
    targets = torch.as_tensor(alignments.load(name)).long()
    if len(targets) != frames:
        raise TargetError(
            f"{name}: its alignment has {len(targets)} frames, but its features have {frames}"
        )
    if int(targets.max()) >= senones:
        raise TargetError(
            f"{name}: its alignment contains senone {int(targets.max())}, but the teacher has only "
            f"{senones} senones"
        )
    return targets[centre(frames)]


@dataclass(frozen=True)
class Row:
    """Measurements for one k; errors and losses are means over the frames."""

    k: int
    bytes_per_hour: float
    """Size of the stored targets per hour of audio."""
    tail_mass: float
    """Total probability of the senones that are not stored."""
    reconstruction_error: float
    """Total variation distance between reconstructed and teacher's posteriors, 0 to 1: half of the
    sum of the absolute differences."""
    student_loss: float
    """Cross entropy between the teacher's full posteriors and those of a student trained on the k
    logits, on held-out utterances, at its minimum over the steps. Only the student's output layer
    is trained. (The cross entropy with the reconstructed posteriors, which training reports, is not
    comparable between different k, since they are sharper for smaller k.)"""
    loss_change: float
    """Relative change of `student_loss` compared with training on full posteriors."""


@dataclass(frozen=True)
class Utterance:
    """The models' outputs for one utterance."""

    name: str
    logits: Tensor
    """[T, C], the teacher's."""
    hidden: Tensor
    """[T, H]: input of the student's output layer."""


def choose_k(
    teacher: TrainedModel, student: TrainedModel, features: Path, config: ChoiceConfig, out: Path
) -> list[Row]:
    """Measure storage and accuracy of the k best logits, for several k.

    Args:
      teacher: the model whose targets are to be stored.
      student: a trained model of the student's kind, such as one trained on the labelled data.
      features: a feature store of audio that neither model was trained on, preferably unlabelled.
      config: values of k, and amount of data.
      out: gets `choice_of_k.json`, `choice_of_k.tsv` and `choice_of_k.png`.

    Returns:
      A row for each k, from the smallest to the number of senones.

    Raises:
      TargetError: there are too few utterances.
    """
    store = FeatureStore(features)
    names = sample_utterances(
        [name for name in store.ids if store.num_frames(name)], config.utterances
    )
    if len(names) < 2:
        raise TargetError(
            f"{features} has {len(names)} utterances with frames: at least 2 are needed"
        )
    # 1. Divide the utterances: a student's output layer is trained on most of them, and measured on
    # the others.
    hours = sum(store.cut(name).duration for name in names) / 3600
    utterances = _compute_utterances(teacher, student, store, names)
    held_out_names = set(names[::HELD_OUT_EVERY])
    training = [u for u in utterances if u.name not in held_out_names]
    held_out = [u for u in utterances if u.name in held_out_names]
    senones = utterances[0].logits.shape[1]
    ks = sorted({min(k, senones) for k in (*config.ks, senones)})
    # 2. Train on all logits, unrounded: `loss_change` is relative to this.
    all_senones = torch.arange(senones)
    all_logits = [(all_senones.expand_as(u.logits), u.logits) for u in training]
    reference = _student_loss(training, all_logits, held_out)
    # 3. For each k: size of the targets, error of the posteriors, loss of the student.
    rows = []
    for k in Bar(ks, "k"):
        stored, size = _store(utterances, k)
        tail, error = _approximation_error(utterances, stored)
        k_best_logits = [_tensors(stored[u.name]) for u in training]
        loss = _student_loss(training, k_best_logits, held_out)
        rows.append(Row(k, size / hours, tail, error, loss, loss / reference - 1))
    _write(rows, out)
    return rows


def smallest_sufficient(rows: Sequence[Row]) -> int:
    """Return the smallest k such that all k from it on change the loss by less than `TOLERANCE`."""
    ks = [row.k for row in rows]
    # From the largest k down, while the next smaller one changes the loss negligibly
    while len(ks) > 1 and abs(rows[len(ks) - 2].loss_change) < TOLERANCE:
        ks.pop()
    return ks[-1]


def table(rows: Sequence[Row]) -> list[str]:
    """Format the rows as a text table."""
    lines = [f"{'k':>6} {'MB/hour':>9} {'tail mass':>11} {'error':>9} {'loss':>9} {'change':>9}"]
    lines += [
        f"{row.k:>6} {row.bytes_per_hour / 1e6:>9.2f} {row.tail_mass:>11.2e} "
        f"{row.reconstruction_error:>9.2e} {row.student_loss:>9.4f} {row.loss_change:>+9.2%}"
        for row in rows
    ]
    return lines


def train_output_layer(
    hidden: Tensor,
    senones: Tensor,
    logits: Tensor,
    held_out_hidden: Tensor,
    held_out_logits: Tensor,
) -> float:
    """Train an output layer on a teacher's targets, with the same start and steps in every call.

    Args:
      hidden: [T, H], inputs of the layer.
      senones: [T, k] int64: the k best senones of each frame.
      logits: [T, k], the teacher's logits of these senones.
      held_out_hidden: [U, H], inputs of held-out frames.
      held_out_logits: [U, C], the teacher's.

    Returns:
      The lowest cross entropy with the full posteriors on the held-out frames, mean per frame.
    """
    # Zeros instead of random weights: the same start for every k
    layer = nn.Linear(hidden.shape[1], held_out_logits.shape[1])
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    optimizer = torch.optim.Adam(layer.parameters())
    rng = torch.Generator().manual_seed(0)
    posteriors, lowest = held_out_logits.softmax(dim=-1), math.inf
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = exponential_rate(step, STEPS, *RATES)
        # A separate generator draws the frames, so that they are the same for every k.
        rows = torch.randint(len(hidden), (FRAMES_PER_STEP,), generator=rng)
        optimizer.zero_grad()
        losses, _ = distillation_losses(layer(hidden[rows]), senones[rows], logits[rows])
        losses.mean().backward()
        optimizer.step()
        if (step + 1) % STEPS_BETWEEN_MEASUREMENTS == 0:
            with torch.no_grad():
                loss = functional.cross_entropy(layer(held_out_hidden), posteriors)
            lowest = min(lowest, float(loss))
    return lowest


def _compute_utterances(
    teacher: TrainedModel, student: TrainedModel, store: FeatureStore, names: Sequence[str]
) -> list[Utterance]:
    """Compute the outputs of both models: the teacher's logits, the student's last hidden layer."""
    model, normaliser = student.load()
    model.output = nn.Identity()  # leaves the input of the output layer
    computed = compute_logits([teacher.load(), (model, normaliser)], store, names)
    # Clones, since tensors created in inference mode cannot be used in training
    return [
        Utterance(name, logits.clone(), hidden.clone())
        for name, (logits, hidden) in Bar(computed, "posteriors", len(names))
    ]


def _store(utterances: Sequence[Utterance], k: int) -> tuple[dict[str, KBest], int]:
    """Store targets as the pipeline does; return the targets read back, and the number of bytes."""
    stored = {}
    with tempfile.TemporaryFile() as file:
        tar = TarWriter(file)
        for utterance in utterances:
            packed = k_best(utterance.logits, k).pack()
            tar.add_array(
                utterance.name, packed, Array("shar", "", "", list(packed.shape)).to_dict()
            )
            stored[utterance.name] = KBest.unpack(packed)
        tar.close()
        return stored, file.tell()


def _approximation_error(
    utterances: Sequence[Utterance], stored: dict[str, KBest]
) -> tuple[float, float]:
    """Return the tail mass and the total variation, each as a mean over the frames."""
    frames, tail, error = 0, 0.0, 0.0
    for utterance in utterances:
        best, full = stored[utterance.name], utterance.logits.double().softmax(dim=-1)
        rebuilt = best.rebuild(full.shape[1]).double().softmax(dim=-1)
        frames += len(full)
        # Total variation: 1/2 sum_c |q_c - p_c|
        tail += float(best.tail.sum(dtype="float64"))
        error += float((rebuilt - full).abs().sum()) / 2
    return tail / frames, error / frames


def _student_loss(
    training: Sequence[Utterance],
    targets: Sequence[tuple[Tensor, Tensor]],
    held_out: Sequence[Utterance],
) -> float:
    """Return `Row.student_loss`; targets are each utterance's senones and logits, both [T, k]."""
    senones, logits = (torch.cat(parts) for parts in zip(*targets, strict=True))
    return train_output_layer(
        torch.cat([u.hidden for u in training]),
        senones,
        logits,
        torch.cat([u.hidden for u in held_out]),
        torch.cat([u.logits for u in held_out]),
    )


def _tensors(best: KBest) -> tuple[Tensor, Tensor]:
    """Return the stored senones, int64, and their logits, float32; both [T, k]."""
    return torch.from_numpy(best.ids.astype("int64")), torch.from_numpy(best.logits).float()


def _write(rows: Sequence[Row], out: Path) -> None:
    """Write the measurements for all k as JSON, as a table and as a figure."""
    values = [asdict(row) for row in rows]
    write_atomically(out / "choice_of_k.json", json.dumps(values, indent=1) + "\n")
    names = [field.name for field in fields(Row)]
    lines = ["\t".join(names), *("\t".join(f"{row[name]:g}" for name in names) for row in values)]
    write_atomically(out / "choice_of_k.tsv", "".join(f"{line}\n" for line in lines))
    write_atomically(out / "choice_of_k.png", choice_of_k_figure(values))
