"""Blockwise model update filtering: workers train alone and average now and then (C29)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from toolkit.parallel.config import BmufConfig, ParallelError
from toolkit.parallel.distributed import Distributed


class BmufState:
    """The mathematics: the global model and its momentum, moved on once per block.

    Args:
      weights: [W] float32, what all workers begin with.
      ranks: N.
      config: momentum, rate, Nesterov's step.
    """

    def __init__(self, weights: Tensor, ranks: int, config: BmufConfig) -> None:
        self._config, self._ranks = config, ranks
        self.start = weights.clone()
        """[W] what workers begin the present block with: W_g of equation 5."""
        self.model = self.start
        """[W] the global model, to be validated and kept; `start` itself where that is the same."""
        self.momentum = torch.zeros_like(weights)
        """[W] Delta of equation 4."""
        self.blocks = 0
        """Blocks done."""

    def eta(self, block: int) -> float:
        """Give the block momentum of a block (from 0)."""
        if block < self._config.warmup:
            return 0.0
        given = self._config.momentum
        return 1 - 1 / self._ranks if given is None else given

    def zeta(self, block: int) -> float:
        """Give the block learning rate, by equation 6; 1 in the warm-up."""
        if block < self._config.warmup:
            return 1.0
        return self._config.rate * self._ranks * (1 - self.eta(block))

    def step(self, mean: Tensor) -> Tensor:
        """End a block.

        Args:
          mean: [W] of the workers' models (equation 2).

        Returns:
          [W] `start` of the next block.
        """
        update = mean - self.start  # equation 3
        self.momentum = self.eta(self.blocks) * self.momentum + self.zeta(self.blocks) * update
        self.blocks += 1
        ahead = self.eta(self.blocks) * self.momentum
        if self._config.nbm == "nesterov":
            self.model = self.model + self.momentum
            self.start = self.model + ahead
        else:
            self.start = self.model = self.start + self.momentum + ahead
        return self.start

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold."""
        state = {"start": self.start, "momentum": self.momentum, "blocks": self.blocks}
        return state if self.model is self.start else {**state, "model": self.model}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take back what `state` returned."""
        device = self.start.device
        self.start = state["start"].to(device)
        self.model = state["model"].to(device) if "model" in state else self.start
        self.momentum, self.blocks = state["momentum"].to(device), state["blocks"]


class Bmuf(Distributed):
    """Every worker trains alone for a block of minibatches; then the global model moves on.

    A block that the end of an epoch cuts short is ended there. What is validated and stored is the
    global model.
    """

    def start(self, model: nn.Module, optimizer: Optimizer) -> None:
        """See `Strategy`."""
        super().start(model, optimizer)
        self._begin()

    def _begin(self) -> None:
        """Begin with the model's weights."""
        self._state = BmufState(self.flat.weights(), self.workers.ranks, self.config.bmuf)
        self._in_block = 0  # steps

    def after_step(self) -> None:
        """See `Strategy`."""
        super().after_step()
        self._in_block += 1
        if self._in_block == self.config.bmuf.block:
            self._end_block()

    def end_epoch(self) -> None:
        """See `Strategy`."""
        if self._in_block:
            self._end_block()

    @contextmanager
    def consensus(self) -> Iterator[None]:
        """See `Strategy`: the global model."""
        own = self.flat.weights()
        self.flat.set_weights(self._state.model)
        try:
            with super().consensus():
                yield
        finally:
            self.flat.set_weights(own)

    def agree(self, due: bool) -> bool:
        """See `Strategy`: between blocks, when all workers have the same weights."""
        return self._in_block == 0 and self.decided(due)

    def state(self) -> dict[str, Any]:
        """See `Strategy`; between blocks all workers' weights are compared."""
        if self._in_block == 0:
            self.check_replicas()
        return super().state() | {"bmuf": self._state.state(), "in_block": self._in_block}

    def own_state(self) -> dict[str, Any]:
        """See `Strategy`: the worker's weights within a block, and its optimizer's state."""
        own = super().own_state()
        if self._in_block:
            own["weights"] = self.flat.weights()
        if self._in_block or self.config.bmuf.optimizer == "keep":
            own["optimizer"] = self.optimizer.state_dict()
        return own

    def load_state(self, state: dict[str, Any], own: Sequence[dict[str, Any]]) -> None:
        """See `Strategy`; another number of workers begins the block again."""
        super().load_state(state, own)
        if not state:
            self._begin()
            return
        self._state.load_state(state["bmuf"])
        self._in_block = state["in_block"]
        if self.rescaled(state):
            self._in_block = 0
            self.flat.set_weights(self._state.start)
        elif self._in_block:
            self.flat.set_weights(own[0]["weights"])
        if own and "optimizer" in own[0]:
            self.optimizer.load_state_dict(own[0]["optimizer"])

    def _end_block(self) -> None:
        self._in_block = 0
        mean = self.workers.add_up(self.flat.weights()).wait() / self.workers.ranks
        if not torch.isfinite(mean.sum()):
            raise ParallelError(
                "the mean of the workers' models is not finite: one of them diverged; lower "
                "initial_rate, or shorten the blocks (parallel.bmuf.block)"
            )
        self.flat.set_weights(self._state.step(mean))
        if self.config.bmuf.optimizer == "reset":
            self.optimizer.state.clear()
        elif self.config.bmuf.optimizer == "average":
            for values in self._optimizer_state():
                values.copy_(self.workers.add_up(values.clone()).wait() / self.workers.ranks)

    def _optimizer_state(self) -> Iterator[Tensor]:
        """Yield the optimizer's tensors, in the same order on every worker; counts left out."""
        for parameter in self.flat.parameters:
            for _, value in sorted(self.optimizer.state.get(parameter, {}).items()):
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    yield value
