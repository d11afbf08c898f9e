"""Simulated synchronous methods: S-SGD, SC-PSGD, GTC, BMUF, ADPSGD with delay by one."""

from collections.abc import Callable

import torch
from torch import Tensor

from toolkit.parallel.bmuf import BmufState
from toolkit.parallel.compression import PER_WORD
from toolkit.parallel.config import GtcConfig
from toolkit.parallel.gtc_state import GtcState
from toolkit.parallel.learner import delay_by_one_update
from toolkit.scaling.simulator.optimizer import OptimizerName, Optimizers
from toolkit.scaling.simulator.run import Outcome, Run, Scenario

WORD = 4  # bytes


def ssgd(run: Run) -> Outcome:
    """S-SGD: gradients are all-reduced at every step, overlapping with the backward pass."""
    optimizer = run.optimizers(1) if run.task else None

    def update(weights: Tensor, minibatches: list[int], rate: float) -> Tensor:
        gradients = run.task.gradients(weights[None], minibatches, run.scenario.frames)
        return optimizer.step(weights[None], gradients.mean(dim=0, keepdim=True), rate)[0]

    return run.finish(train(run, update, lambda: all_reduce(run), run.exposed))


def scpsgd(run: Run) -> Outcome:
    """SC-PSGD: models of all workers are averaged after every step (B1).

    With plain SGD the models equal those of S-SGD; but communication does not overlap.
    """
    optimizers = run.optimizers(run.workers) if run.task else None

    def update(weights: Tensor, minibatches: list[int], rate: float) -> Tensor:
        gradients = run.task.gradients(weights[None], minibatches, run.scenario.frames)
        models = optimizers.step(weights.repeat(run.workers, 1), gradients, rate)
        return models[: len(minibatches)].mean(dim=0)

    return run.finish(train(run, update, lambda: all_reduce(run)))


def gtc(run: Run) -> Outcome:
    """GTC: every worker sends the elements beyond the threshold to every other (C28)."""
    return compressed(run, GtcState, run.scenario.optimizer)


def compressed(
    run: Run, make: Callable[[int, GtcConfig], GtcState], last: OptimizerName
) -> Outcome:
    """Send compressed gradients.

    Args:
      run: the training.
      make: makes the state of each worker.
      last: optimizer that takes a step with the sum of the messages.
    """
    scenario, task, workers = run.scenario, run.task, run.workers
    states = [make(task.size, scenario.gtc) for _ in range(workers)] if task else []
    optimizer = Optimizers(last, 1, task.size) if task else None
    sizes = [WORD + _share(scenario) * scenario.model_bytes] * workers
    densities: list[float] = []

    def update(weights: Tensor, minibatches: list[int], rate: float) -> Tensor:
        gradients = task.gradients(weights[None], minibatches, scenario.frames)
        scale = scenario.frames if scenario.gtc.grad_scale == "sum" else 1
        messages = [
            state.encode(scale * gradient)
            for state, gradient in zip(states, gradients, strict=False)
        ]
        # The header does not scale with the size of the model.
        sizes[:] = [WORD + (len(x) - 1) / task.size * scenario.model_bytes for x in messages]
        total, density = states[0].decode(messages)
        for state in states[1:]:
            state.threshold = states[0].threshold
        densities.append(density)
        return optimizer.step(weights[None], total[None] / (scale * len(messages)), rate)[0]

    def exchange() -> tuple[float, float, float]:
        if workers == 1:
            return 0.0, 0.0, 0.0
        seconds = run.network.all_to_all(sizes)
        coded = (scenario.model_bytes + sum(sizes)) / scenario.codec
        return seconds + coded, sum(sizes) * (workers - 1), run.network.bytes_between(sizes)

    outcome = run.finish(train(run, update, exchange))
    outcome.density = sum(densities) / len(densities) if densities else scenario.density
    return outcome


def _share(scenario: Scenario) -> float:
    """Words of a message per element, in the shorter of the two formats."""
    bitmap = 1 / PER_WORD if scenario.gtc.dense_fallback else 1.0
    return min(scenario.density, bitmap)


def bmuf(run: Run, initial: Tensor | None = None, share: float = 1.0) -> Outcome:
    """BMUF: local training for a block of minibatches, then an update of the global model (C29).

    Minibatches that are too few for all workers are dropped, as by the training loop. Every worker
    keeps its optimizer state.

    Args:
      run: the training.
      initial: weights [P] to begin with; by default the task's.
      share: bytes of an exchange, as a share of the model's.
    """
    scenario, task, outcome, workers = run.scenario, run.task, run.outcome, run.workers
    if scenario.optimizer != "sgd" and scenario.bmuf.optimizer != "keep":
        raise ValueError(
            f"bmuf.optimizer is {scenario.bmuf.optimizer!r}; only keep can be simulated"
        )
    initial = task.initial() if task and initial is None else initial
    state = BmufState(initial, workers, scenario.bmuf) if task else None
    optimizers = run.optimizers(workers) if task else None
    everyone = range(workers)
    while steps := min(scenario.bmuf.block, run.left // workers):
        models = state.start.repeat(workers, 1) if state else None
        alone = torch.zeros(workers, dtype=torch.float64).numpy()
        for _ in range(steps):
            rate = scenario.rate_at(run.done)
            minibatches = run.take(workers)
            alone += run.draw(everyone)
            if task:
                gradients = task.gradients(models, minibatches, scenario.frames)
                models = optimizers.step(models, gradients, rate)
        once = (value / scenario.stands_for for value in all_reduce(run, share))
        seconds, sent, between = once
        outcome.seconds += alone.max() + seconds
        outcome.computed += alone.sum()
        _count(run, seconds, sent, between)
        if task:
            outcome.spread = _spread(models)
            state.step(models.mean(dim=0))
            run.track(state.model)
    return run.finish(state.model if state else None)


def delay_by_one(run: Run) -> Outcome:
    """ADPSGD with delay by one: local steps from the mean of the previous step's models (B1).

    The all-reduce of the models overlaps with the computation of the gradients; a step takes as
    long as the longer of the two.
    """
    scenario, task, outcome, workers = run.scenario, run.task, run.outcome, run.workers
    models = task.initial().repeat(workers, 1) if task else None
    optimizers = run.optimizers(workers) if task else None
    while run.done < 1:
        rate = scenario.rate_at(run.done, workers)
        minibatches = run.take(workers)
        times = run.draw(range(len(minibatches)))
        seconds, sent, between = all_reduce(run)
        outcome.seconds += max(times.max(), seconds)
        outcome.computed += times.sum()
        _count(run, seconds, sent, between)
        if task:
            mean = models.mean(dim=0)
            taking = models[: len(minibatches)]
            gradients = task.gradients(taking, minibatches, scenario.frames)
            models = delay_by_one_update(models, optimizers.step(models, gradients, rate), mean)
            run.track(mean)
    if task:
        outcome.spread = _spread(models)
    return run.finish(models.mean(dim=0) if task else None)


def train(
    run: Run,
    update: Callable[[Tensor, list[int], float], Tensor],
    exchange: Callable[[], tuple[float, float, float]],
    outlasting: Callable[[float, float], float] = lambda seconds, step: seconds,
    until: float = 1.0,
) -> Tensor | None:
    """Take synchronous steps: all workers compute gradients at the same weights.

    Args:
      run: the training.
      update: returns new weights from old ones, the minibatches' indices and the learning rate.
      exchange: returns seconds, bytes sent, and bytes between hosts of a step's communication.
      outlasting: returns the seconds that a communication of so many seconds adds to a step of so
        many.
      until: share of the data after which to stop.

    Returns:
      The weights.
    """
    scenario, task, outcome = run.scenario, run.task, run.outcome
    weights = task.initial() if task else None
    while run.done < until:
        rate = scenario.rate_at(run.done, run.workers)
        minibatches = run.take(run.workers)
        times = run.draw(range(len(minibatches)))
        if task:
            weights = update(weights, minibatches, rate)
        seconds, sent, between = exchange()
        outcome.seconds += times.max() + outlasting(seconds, times.max())
        outcome.computed += times.sum()
        _count(run, seconds, sent, between)
        if task:
            run.track(weights)
    return weights


def all_reduce(run: Run, share: float = 1.0) -> tuple[float, float, float]:
    """Return seconds, bytes sent by all workers and bytes between hosts of an all-reduce.

    Args:
      run: the training.
      share: bytes of the message, as a share of the model's.
    """
    size = share * run.scenario.model_bytes
    workers, hosts = run.workers, run.network.hosts(run.workers)
    seconds = run.network.all_reduce(workers, size)
    return seconds, 2 * (workers - 1) * size, 2 * (hosts - 1) * size


def _count(run: Run, seconds: float, sent: float, between: float) -> None:
    run.outcome.communicated += seconds * run.workers
    run.outcome.sent += sent
    run.outcome.between += between


def _spread(models: Tensor) -> float:
    """Consensus distance divided by the norm of the mean model."""
    mean = models.mean(dim=0)
    return float((models - mean).square().sum(dim=1).mean().sqrt() / mean.norm())
