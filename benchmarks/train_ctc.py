"""Training throughput of the CTC model relative to the GEMM limit, and the times of its parts."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.limits import Gemm, synchronised
from benchmarks.run import Case, Table, Target, compare, rate_ratio
from toolkit.models.config import CtcConfig
from toolkit.models.ctc import CtcModel, output_lengths
from toolkit.models.lstm_cpu import is_faster_than_torch, run_lstm, spread_rows
from toolkit.processes.devices import choose_device
from toolkit.train.config import CtcTrainingConfig
from toolkit.train.ctc.objective import CtcLoss, ctc_losses
from toolkit.train.ctc.readers import CtcBatch
from toolkit.train.optimizer import make_optimizer
from toolkit.train.trainer import Trainer

BATCH = {"cpu": 8, "cuda": 24}  # A10: 24 per GPU on Sys1$
FRAMES = 1670  # A8: what every element is padded to
LABELS = 200  # about the characters of 16.7 s of read speech
SKINNY_REPEATS = 200

LIMIT = "GEMM limit, float32"
STEP = "training step"
PLAIN = "training step, plain torch"
SMOKE = {
    "config": CtcConfig(
        input_dim=6,
        output_dim=9,
        channels=(8,),
        kernels=(3,),
        strides=(2,),
        lstm_layers=2,
        hidden=16,
    ),
    "frames": 41,
}
TARGETS = (Target("CTC network, float32: share of the GEMM limit", 0.8, rate_ratio(STEP, LIMIT)),)
PARTS = ("convolution", "LSTMs", "batch norm and dropout", "CTC loss", "clipping and AdaDelta")


def flops_per_element(config: CtcConfig, frames: int) -> int:
    """Return the number of operations to train on an element: 2 per weight forward, 4 backward.

    The first convolution has only 2 backward, since the features need no gradient. Biases,
    activations and normalisation are not counted.
    """
    width = config.hidden * (1 + config.bidirectional)
    lengths, total = torch.tensor(frames), 0
    sizes = (config.input_dim, *config.channels)
    for i, kernel in enumerate(config.kernels):
        lengths = torch.div(lengths - kernel, config.strides[i], rounding_mode="floor") + 1
        total += (6 if i else 4) * int(lengths) * kernel * sizes[i] * sizes[i + 1]
    inputs = [sizes[-1], *[width] * (config.lstm_layers - 1)]
    recurrent = sum(4 * width * (size + config.hidden) for size in inputs)
    return total + 6 * int(lengths) * (recurrent + width * config.output_dim)


def benchmark(
    config: CtcConfig = CtcConfig(),  # noqa: B008 - frozen
    frames: int = FRAMES,
    device: str | None = None,
) -> Table:
    """Measure elements per second of complete steps of the paper's model, on a GPU if any (A27).

    Convolution, LSTMs, batch normalisation, dropout, CTC loss, clipping and AdaDelta are all
    included; every element has the paper's 1,670 frames, none of them padding. The parts are
    measured separately, forwards and backwards, so their shares need not add up to 100 %.

    Args:
      config: sizes of the network.
      frames: number of frames of an element.
      device: where to train; None: on a GPU if there is one.
    """
    where = torch.device(choose_device(device))
    size, per_element = BATCH[where.type], flops_per_element(config, frames)
    batch = _noise(config, size, frames).to(where)
    with tempfile.TemporaryDirectory() as folder:
        runs = {
            LIMIT: Gemm(where, torch.float32, per_element),
            STEP: _Step(config, batch, Path(folder), where),
            PLAIN: _Plain(config, batch, where),
            **dict(zip(PARTS, _parts(config, batch, where), strict=True)),
        }
        cases = [Case(name, synchronised(run, where)) for name, run in runs.items()]
        table = compare(
            cases,
            unit="elements",
            baseline=LIMIT,
            repeats=2,
            title=f"Training the CTC model of {config.lstm_layers} x {config.hidden}, "
            f"batch {size} of {frames} frames, {where.type}",
        )
    rates = {row.name: row.rate for row in table.rows}
    shares = ", ".join(f"{name} {100 * rates[STEP] / rates[name]:.0f} %" for name in PARTS)
    limit = rates[LIMIT] * per_element
    skinny = {rows: _skinny(config.hidden, rows, where) for rows in (size, 24, 150)}
    skinny_rates = ", ".join(
        f"{100 * rate / limit:.0f} % at batch {n}" for n, rate in skinny.items()
    )
    weights = 16 * config.hidden**2  # bytes of a layer's recurrent matrix
    read = skinny[size] / (8 * size * config.hidden**2) * weights / 1e9
    return table.with_notes(
        f"{per_element / 1e9:.1f} GFLOP per element; GEMM limit {limit / 1e9:.0f} GFLOP/s. The "
        f"step is at {100 * table.row(STEP).ratio:.0f} % of it, "
        f"{rates[STEP] / rates[PLAIN]:.2f} times as fast as plain torch.",
        f"Shares of the step: {shares}.",
        f"A frame's recurrent product alone, [batch, {config.hidden}] by [{config.hidden}, "
        f"{4 * config.hidden}], reaches these shares of the limit: {skinny_rates}. At batch {size} "
        f"it reads the {weights / 1e6:.0f} MB of weights at {read:.0f} GB/s, once per frame. Half "
        "of the LSTMs' operations are such products; the others are done for all frames at once.",
    )


def _noise(config: CtcConfig, size: int, frames: int) -> CtcBatch:
    """Make a batch of noise."""
    labels = min(LABELS, int(output_lengths(config, torch.tensor(frames))) // 2)
    return CtcBatch(
        ids=[f"utterance-{i}" for i in range(size)],
        inputs=torch.randn(size, frames, config.input_dim),
        input_lengths=torch.full((size,), frames),
        labels=torch.randint(config.output_dim - 1, (size, labels)),
        label_lengths=torch.full((size,), labels),
        frames=size * frames,
    )


class _Endless:
    """A data source that repeats one batch."""

    def __init__(self, batch: CtcBatch) -> None:
        self._batch = batch

    def num_steps(self, epoch: int, world_size: int = 1) -> int:
        return 1

    def batches(self, epoch: int, start: int = 0, rank: int = 0, world_size: int = 1) -> Iterator:
        return iter([self._batch])


class _Step:
    """A training step of the toolkit's trainer."""

    def __init__(self, config: CtcConfig, batch: CtcBatch, out: Path, device: torch.device) -> None:
        self._batch = batch
        objective = CtcLoss(config.output_dim - 1)
        model = CtcModel(config).train()
        source, settings = _Endless(batch), CtcTrainingConfig(epochs=1)
        self._trainer = Trainer(model, objective, source, settings, out, device=device)

    def run(self) -> float:
        self._trainer.train_step(self._batch)
        return len(self._batch.ids)


class _Plain:
    """The same network and step with torch's own layers, which treat padding as frames."""

    def __init__(self, config: CtcConfig, batch: CtcBatch, device: torch.device) -> None:
        model = CtcModel(config)
        self._model = model.to(device)
        self._norms = nn.ModuleList(
            nn.BatchNorm1d(norm.weight.shape[0]) for norm in model.norms
        ).to(device)
        self._batch = batch
        self._blank = config.output_dim - 1
        self._parameters = [*model.parameters(), *self._norms.parameters()]
        self._optimizer = torch.optim.Adadelta(self._parameters)

    def run(self) -> float:
        model, x = self._model, self._batch.inputs.transpose(1, 2)
        layers = [*model.convolutions, *model.lstms]
        for i, (layer, norm) in enumerate(zip(layers, self._norms, strict=True)):
            if i < len(model.convolutions):
                x = layer(x).relu()
            else:
                x = layer(x.transpose(1, 2))[0].transpose(1, 2)
            x = functional.dropout(norm(x), model.config.dropout)
        log_probs = model.output(x.transpose(1, 2)).log_softmax(-1)
        lengths = torch.full((len(log_probs),), log_probs.shape[1])
        loss = functional.ctc_loss(
            log_probs.transpose(0, 1),
            self._batch.labels,
            lengths,
            self._batch.label_lengths,
            blank=self._blank,
        )
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self._parameters, 100.0)
        self._optimizer.step()
        return len(self._batch.ids)


class _Part:
    """One part of the network: forwards on fixed inputs, backwards from fixed gradients."""

    def __init__(self, forward: Callable[[], Tensor], size: int) -> None:
        self._forward = forward
        self._size = size
        self._gradient = torch.ones_like(forward())  # d loss / d output, any values

    def run(self) -> float:
        self._forward().backward(self._gradient)
        return self._size


def _parts(config: CtcConfig, batch: CtcBatch, device: torch.device) -> list[_Part]:
    """Return the parts in the order of `PARTS`."""
    model, size = CtcModel(config).to(device).train(), len(batch.ids)
    lengths = output_lengths(config, batch.input_lengths)
    frames, blank = int(lengths[0]), config.output_dim - 1

    # Each part gets random inputs [N, T, width], so that its time excludes the other parts.
    def leaf(width: int) -> Tensor:
        return torch.randn(size, frames, width, device=device, requires_grad=True)

    hidden = [leaf(lstm.input_size) for lstm in model.lstms]
    between = [leaf(norm.weight.shape[0]) for norm in model.norms]
    output = leaf(config.output_dim)

    def convolution() -> Tensor:
        x = batch.inputs.transpose(1, 2)  # [N, C, T], as torch's convolutions take it
        for layer in model.convolutions:
            x = layer(x).relu()
        return x

    def lstms() -> Tensor:
        outputs = []
        for lstm, x in zip(model.lstms, hidden, strict=True):
            fast = is_faster_than_torch(lstm, x)
            outputs.append((run_lstm(lstm, x) if fast else lstm(x))[0])
        return torch.stack(outputs)

    def norms() -> Tensor:
        pairs = zip(model.norms, between, strict=True)
        return torch.cat([functional.dropout(n(x, None), config.dropout) for n, x in pairs], 2)

    def loss() -> Tensor:
        log_probs = output.log_softmax(-1)
        return ctc_losses(log_probs, lengths, batch.labels, batch.label_lengths, blank)[0]

    return [
        *(_Part(forward, size) for forward in (convolution, lstms, norms, loss)),
        _Optimizer(config, size, device),
    ]


class _Optimizer:
    """Gradient clipping and the optimizer's step."""

    def __init__(self, config: CtcConfig, size: int, device: torch.device) -> None:
        model = CtcModel(config).to(device)
        self._parameters = list(model.parameters())
        for parameter in self._parameters:
            parameter.grad = torch.ones_like(parameter)
        self._optimizer = make_optimizer(model, CtcTrainingConfig())
        self._size = size

    def run(self) -> float:
        nn.utils.clip_grad_norm_(self._parameters, 1e9)
        self._optimizer.step()
        return self._size


def _skinny(hidden: int, rows: int, device: torch.device) -> float:
    """Measure operations per second of products of few rows with a recurrent matrix."""
    x, weights = torch.randn(rows, hidden, device=device), torch.randn(hidden, 4 * hidden)
    y, weights = torch.zeros(rows, 4 * hidden, device=device), spread_rows(weights.to(device))
    for _ in range(2):
        begin = perf_counter()
        for _ in range(SKINNY_REPEATS):
            torch.mm(x, weights, out=y)
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds = perf_counter() - begin
    return SKINNY_REPEATS * 8 * rows * hidden**2 / seconds
