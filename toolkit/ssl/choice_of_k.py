"""Choice of k, the number of a teacher's logits to store: accuracy and storage against k (C11)."""

import json
import math
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from lhotse.array import Array
from torch import Tensor, nn
from torch.nn import functional

from toolkit.features.store import FeatureStore
from toolkit.features.tars import TarWriter
from toolkit.processes.bars import Bar
from toolkit.ssl.figures import choice_of_k_figure
from toolkit.ssl.logits import TrainedModel, compute_logits, sample_utterances
from toolkit.ssl.targets import KBest, TargetError, k_best
from toolkit.storage.files import write_atomically
from toolkit.train.cross_entropy import distillation_losses
from toolkit.train.optimizer import exponential_rate

TOLERANCE = 0.01
"""Relative change of the student's loss that is negligible."""
HELD_OUT_EVERY = 3
"""Every third utterance is held out: the student's loss is measured on it."""
STEPS, FRAMES_PER_STEP = 300, 1024
RATES = 2e-2, 2e-4
"""Initial and final learning rate of Adam. A layer of 256 x 242 takes two seconds. With
twice the steps its loss was 0.6 % lower, and with k = 20 it was 1.1 % instead of 1.0 % above that
with all senones."""
STEPS_BETWEEN_MEASUREMENTS = 20


@dataclass(frozen=True)
class ChoiceConfig:
    """Values of k to try, and amount of data."""

    ks: tuple[int, ...] = (1, 2, 5, 10, 20, 50)
    """Values of k; the number of all senones is tried as well."""
    utterances: int = 100
    """Number of utterances, sampled by a checksum of their ids. Their logits are kept in memory,
    and targets of all senones temporarily on disk: 1.5 GB each per hour with 3,183 senones."""

    def __post_init__(self) -> None:
        if not self.ks or min(self.ks) < 1:
            raise ValueError("ks must be numbers of 1 or more")
        if self.utterances < 2:
            raise ValueError("utterances must be 2 or more")


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
      features: a feature store of audio that neither was trained on, preferably unlabelled.
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
            f"{features} has {len(names)} utterances with frames, at least 2 are needed"
        )
    hours = sum(store.cut(name).duration for name in names) / 3600
    found = _compute_utterances(teacher, student, store, names)
    held_names = set(names[::HELD_OUT_EVERY])
    training = [one for one in found if one.name not in held_names]
    held = [one for one in found if one.name in held_names]
    senones = found[0].logits.shape[1]
    ks = sorted({min(k, senones) for k in (*config.ks, senones)})
    every = torch.arange(senones)
    full = [(every.expand_as(one.logits), one.logits) for one in training]
    reference = _student_loss(training, full, held)
    rows = []
    for k in Bar(ks, "k"):
        stored, size = _store(found, k)
        tail, error = _approximation_error(found, stored)
        kept = [_tensors(stored[one.name]) for one in training]
        loss = _student_loss(training, kept, held)
        rows.append(Row(k, size / hours, tail, error, loss, loss / reference - 1))
    _write(rows, out)
    return rows


def smallest_sufficient(rows: Sequence[Row]) -> int:
    """Return the smallest k from which on the student's loss changes by less than `TOLERANCE`."""
    kept = [row.k for row in rows]
    while len(kept) > 1 and abs(rows[len(kept) - 2].loss_change) < TOLERANCE:
        kept.pop()
    return kept[-1]


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
    hidden: Tensor, senones: Tensor, logits: Tensor, held_hidden: Tensor, held_logits: Tensor
) -> float:
    """Train an output layer on a teacher's targets, from zeros, by the same steps in every call.

    Args:
      hidden: [T, H], inputs of the layer.
      senones: [T, k] int64.
      logits: [T, k], the teacher's logits of these.
      held_hidden: [U, H], inputs of held-out frames.
      held_logits: [U, C], the teacher's.

    Returns:
      The lowest cross entropy with the full posteriors on the held-out frames, mean per frame.
    """
    layer = nn.Linear(hidden.shape[1], held_logits.shape[1])
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    optimizer = torch.optim.Adam(layer.parameters())
    rng = torch.Generator().manual_seed(0)
    posteriors, least = held_logits.softmax(dim=-1), math.inf
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = exponential_rate(step, STEPS, *RATES)
        rows = torch.randint(len(hidden), (FRAMES_PER_STEP,), generator=rng)
        optimizer.zero_grad()
        losses, _ = distillation_losses(layer(hidden[rows]), senones[rows], logits[rows])
        losses.mean().backward()
        optimizer.step()
        if (step + 1) % STEPS_BETWEEN_MEASUREMENTS == 0:
            with torch.no_grad():
                loss = functional.cross_entropy(layer(held_hidden), posteriors)
            least = min(least, float(loss))
    return least


def _compute_utterances(
    teacher: TrainedModel, student: TrainedModel, store: FeatureStore, names: Sequence[str]
) -> list[Utterance]:
    model, normaliser = student.load()
    model.output = nn.Identity()
    computed = compute_logits([teacher.load(), (model, normaliser)], store, names)
    # clones, since tensors of inference mode cannot be used in training
    return [
        Utterance(name, logits.clone(), hidden.clone())
        for name, (logits, hidden) in Bar(computed, "posteriors", len(names))
    ]


def _store(found: Sequence[Utterance], k: int) -> tuple[dict[str, KBest], int]:
    """Store targets as the pipeline does; return what is read back, and the number of bytes."""
    stored = {}
    with tempfile.TemporaryFile() as file:
        tar = TarWriter(file)
        for one in found:
            packed = k_best(one.logits, k).pack()
            tar.add_array(one.name, packed, Array("shar", "", "", list(packed.shape)).to_dict())
            stored[one.name] = KBest.unpack(packed)
        tar.close()
        return stored, file.tell()


def _approximation_error(
    found: Sequence[Utterance], stored: dict[str, KBest]
) -> tuple[float, float]:
    """Return tail mass and total variation, means over the frames."""
    frames, tail, error = 0, 0.0, 0.0
    for one in found:
        best, full = stored[one.name], one.logits.double().softmax(dim=-1)
        rebuilt = best.rebuild(full.shape[1]).double().softmax(dim=-1)
        frames += len(full)
        tail += float(best.tail.sum(dtype="float64"))
        error += float((rebuilt - full).abs().sum()) / 2
    return tail / frames, error / frames


def _student_loss(
    training: Sequence[Utterance],
    targets: Sequence[tuple[Tensor, Tensor]],
    held: Sequence[Utterance],
) -> float:
    """Return `Row.student_loss`; targets are each utterance's senones and logits, both [T, k]."""
    senones, logits = (torch.cat(parts) for parts in zip(*targets, strict=True))
    return train_output_layer(
        torch.cat([one.hidden for one in training]),
        senones,
        logits,
        torch.cat([one.hidden for one in held]),
        torch.cat([one.logits for one in held]),
    )


def _tensors(best: KBest) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(best.ids.astype("int64")), torch.from_numpy(best.logits).float()


def _write(rows: Sequence[Row], out: Path) -> None:
    plain = [asdict(row) for row in rows]
    write_atomically(out / "choice_of_k.json", json.dumps(plain, indent=1) + "\n")
    names = [field.name for field in fields(Row)]
    lines = ["\t".join(names), *("\t".join(f"{row[name]:g}" for name in names) for row in plain)]
    write_atomically(out / "choice_of_k.tsv", "".join(f"{line}\n" for line in lines))
    write_atomically(out / "choice_of_k.png", choice_of_k_figure(plain))
