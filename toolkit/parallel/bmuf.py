"""BMUF, blockwise model update filtering: local training with an average per block (C29)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from toolkit.parallel.config import BmufConfig, ParallelError
from toolkit.parallel.workers import Distributed


class BmufState:
    """The global model and its block momentum, updated once per block.

    Args:
      weights: [W] float32, the initial weights of all workers.
      world_size: N, number of workers.
      config: momentum, rate, Nesterov's step.
    """

    def __init__(self, weights: Tensor, world_size: int, config: BmufConfig) -> None:
        self._config, self._world_size = config, world_size
        self.broadcast_weights = weights.clone()
        """[W] weights with which the workers begin the current block: W_g of equation 5."""
        self.global_weights = self.broadcast_weights
        """[W] the global model, validated and stored; may be the tensor `broadcast_weights`."""
        self.momentum = torch.zeros_like(weights)
        """[W] Delta of equation 4, the update of the global model."""
        self.blocks = 0
        """Number of finished blocks."""

    def block_momentum(self, block: int) -> float:
        """Return eta, the momentum of a block (counted from 0)."""
        if block < self._config.warmup:
            return 0.0
        momentum = self._config.momentum
        return 1 - 1 / self._world_size if momentum is None else momentum

    def block_rate(self, block: int) -> float:
        """Return zeta, the learning rate of a block (equation 6); 1 in the warm-up."""
        # Equation 6: zeta / (N (1 - eta)) = C, so zeta = C N (1 - eta); the setting `rate` is C.
        if block < self._config.warmup:
            return 1.0
        return self._config.rate * self._world_size * (1 - self.block_momentum(block))

    def step(self, mean: Tensor) -> Tensor:
        """Update the global model at the end of a block.

        Args:
          mean: [W] mean of the workers' models (equation 2).

        Returns:
          [W] `broadcast_weights` of the next block.
        """
        eta, zeta = self.block_momentum(self.blocks), self.block_rate(self.blocks)
        # Equation 3: G(t), what the workers have learnt since the block began.
        update = mean - self.broadcast_weights
        # Equation 4: Delta(t) = eta Delta(t - 1) + zeta G(t).
        self.momentum = eta * self.momentum + zeta * update
        self.blocks += 1
        # Nesterov: the next block begins where the momentum will lead.
        ahead = self.block_momentum(self.blocks) * self.momentum
        if self._config.nbm == "nesterov":
            self.global_weights = self.global_weights + self.momentum
            self.broadcast_weights = self.global_weights + ahead
        else:  # Equation 5 as it stands: the model that was moved ahead is the global one.
            self.broadcast_weights = self.broadcast_weights + self.momentum + ahead
            self.global_weights = self.broadcast_weights
        return self.broadcast_weights

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        state = {
            "broadcast_weights": self.broadcast_weights,
            "momentum": self.momentum,
            "blocks": self.blocks,
        }
        if self.global_weights is self.broadcast_weights:
            return state
        return {**state, "global_weights": self.global_weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        device = self.broadcast_weights.device
        self.broadcast_weights = state["broadcast_weights"].to(device)
        self.global_weights = self.broadcast_weights
        if "global_weights" in state:
            self.global_weights = state["global_weights"].to(device)
        self.momentum, self.blocks = state["momentum"].to(device), state["blocks"]


class Bmuf(Distributed):
    """Every worker trains locally for a block of minibatches; then the global model is updated.

    The end of an epoch ends the current block early. The global model is validated and stored.
    """

    def start(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Implement `Strategy.start`."""
        super().start(model, optimizer)
        self._begin()

    def _begin(self) -> None:
        """Start the first block from the model's weights."""
        self._state = BmufState(self.flat.weights(), self.workers.world_size, self.config.bmuf)
        self._in_block = 0  # steps taken in the current block

    def after_step(self) -> None:
        """Implement `Strategy.after_step`."""
        super().after_step()
        self._in_block += 1
        if self._in_block == self.config.bmuf.block:
            self._end_block()

    def end_epoch(self) -> None:
        """Implement `Strategy.end_epoch`."""
        if self._in_block:
            self._end_block()

    @contextmanager
    def consensus(self) -> Iterator[None]:
        """Implement `Strategy.consensus`: the global model."""
        local = self.flat.weights()
        self.flat.set_weights(self._state.global_weights)
        try:
            with super().consensus():
                yield
        finally:
            self.flat.set_weights(local)

    def agree_on_checkpoint(self, due: bool) -> bool:
        """Decide on a checkpoint between blocks, when all workers have the same weights."""
        return self._in_block == 0 and self.rank_zero_decides(due)

    def state_dict(self) -> dict[str, Any]:
        """Implement `Strategy.state_dict`; between blocks the workers' weights are compared."""
        if self._in_block == 0:
            self.check_replicas()
        return super().state_dict() | {"bmuf": self._state.state_dict(), "in_block": self._in_block}

    def rank_state_dict(self) -> dict[str, Any]:
        """Return the worker's optimizer state and, within a block, its weights."""
        state = super().rank_state_dict()
        if self._in_block:
            state["weights"] = self.flat.weights()
        if self._in_block or self.config.bmuf.optimizer == "keep":
            state["optimizer"] = self.optimizer.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any], rank_states: Sequence[dict[str, Any]]) -> None:
        """Restore a checkpoint; if the number of workers has changed, the block starts over."""
        super().load_state_dict(state, rank_states)
        if not state:
            self._begin()
            return
        self._state.load_state_dict(state["bmuf"])
        self._in_block = state["in_block"]
        if self.world_size_changed(state):
            self._in_block = 0
            self.flat.set_weights(self._state.broadcast_weights)
        elif self._in_block:
            self.flat.set_weights(rank_states[0]["weights"])
        if rank_states and "optimizer" in rank_states[0]:
            self.optimizer.load_state_dict(rank_states[0]["optimizer"])

    def _end_block(self) -> None:
        """Average the workers' models, update the global model and start the next block."""
        self._in_block = 0
        # Equation 2: the mean of the N workers' models.
        mean = self.workers.all_reduce(self.flat.weights()).wait() / self.workers.world_size
        if not torch.isfinite(mean.sum()):
            raise ParallelError(
                "the mean of the workers' models is not finite: the training of a worker has "
                "diverged. Lower `initial_rate`, or shorten the blocks (`parallel.bmuf.block`)"
            )
        self.flat.set_weights(self._state.step(mean))
        # Local momentum belongs to the old local weights: drop it, average it, or keep it.
        if self.config.bmuf.optimizer == "reset":
            self.optimizer.state.clear()
        elif self.config.bmuf.optimizer == "average":
            for values in self._optimizer_state():
                values.copy_(
                    self.workers.all_reduce(values.clone()).wait() / self.workers.world_size
                )

    def _optimizer_state(self) -> Iterator[Tensor]:
        """Yield the optimizer's state tensors, without step counts, in a fixed order."""
        for parameter in self.flat.parameters:
            for _, value in sorted(self.optimizer.state.get(parameter, {}).items()):
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    yield value
