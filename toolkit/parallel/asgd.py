"""A-SGD: asynchronous SGD through a parameter server on rank 0 (A19)."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from toolkit.models.tdnnf import constrain_matrices
from toolkit.parallel.asynchronous import Asynchronous
from toolkit.parallel.messages import (
    Answer,
    HostCopies,
    HostStreams,
    PointToPoint,
    Streams,
    Turns,
    streams_of,
)


class ParameterServer:
    """The parameter server of asynchronous SGD (A19): workers push gradients and pull weights.

    After every `parts` gradients, from any workers, the optimizer makes a step with their mean.
    With `parts` equal to the number of workers, updates are as large as in synchronous training;
    but as no worker waits, gradients may be stale.

    Args:
      weights: [P] initial weights.
      optimizer: its class and settings are used, not its state.
      parts: number of gradients per update.
      max_norm: mean gradients of a larger norm are scaled down to it.
      streams: streams of the weights' device, on which the optimizer makes its steps.
      constrain: called after each update with the weights [P], which it may change in place, and
        the number of earlier updates.
    """

    def __init__(
        self,
        weights: Tensor,
        optimizer: Optimizer,
        parts: int,
        max_norm: float = float("inf"),
        streams: Streams | None = None,
        constrain: Callable[[Tensor, int], None] = lambda weights, updates: None,
    ) -> None:
        self._weights = nn.Parameter(weights.detach().clone())
        self._constrain = constrain
        self._optimizer = optimizer_like(optimizer, [self._weights])
        self._sum = torch.zeros_like(self._weights)
        self._rates: list[float] = []
        self._parts = parts
        self._max_norm = max_norm
        self._turns = Turns(streams or HostStreams())
        self.updates = 0
        """Number of updates made."""

    def add(self, gradient: Tensor, rate: float) -> Tensor:
        """Add a worker's gradient; every `parts` gradients, update the weights.

        Args:
          gradient: [P], of the mean loss of the worker's batch.
          rate: the worker's current learning rate; an update uses the mean over its gradients.

        Returns:
          [P]: the weights from which the worker continues.
        """
        with self._turns.ordered():
            # Gradients are added as they arrive; stale ones (of older weights) are used unchanged.
            self._sum += gradient
            self._rates.append(rate)
            if len(self._rates) >= self._parts:
                self._update()
            return self._weights.detach().clone()

    def flush(self) -> None:
        """Apply the pending gradients, if there are any."""
        with self._turns.ordered():
            if self._rates:
                self._update()

    def weights(self) -> Tensor:
        """Return a copy of the weights: [P]."""
        with self._turns.ordered():
            return self._weights.detach().clone()

    def set_weights(self, weights: Tensor) -> None:
        """Replace the weights by [P]."""
        with self._turns.ordered():
            self._weights.data.copy_(weights)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, without weights."""
        with self._turns.ordered():
            return {
                "optimizer": self._optimizer.state_dict(),
                "updates": self.updates,
                "sum": self._sum.clone(),
                "rates": list(self._rates),
            }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        with self._turns.ordered():
            self._optimizer.load_state_dict(state["optimizer"])
            self.updates = state["updates"]
            self._rates = list(state["rates"])
            self._sum.zero_()
            if self._rates:
                self._sum += state["sum"].to(self._sum.device)

    def _update(self) -> None:
        """Let the optimizer take a step on the mean of the pending gradients."""
        # One step of the optimizer with the mean of the gradients, at their mean rate
        self._weights.grad = self._sum / len(self._rates)
        nn.utils.clip_grad_norm_([self._weights], self._max_norm)
        for group in self._optimizer.param_groups:
            group["lr"] = sum(self._rates) / len(self._rates)
        self._optimizer.step()
        self._constrain(self._weights.detach(), self.updates)
        self._sum = torch.zeros_like(self._sum)
        self._rates.clear()
        self.updates += 1


def optimizer_like(optimizer: Optimizer, parameters: Iterable[nn.Parameter]) -> Optimizer:
    """Construct an optimizer of the same class and settings for other parameters, with no state.

    torch's element-wise optimizers have the same effect on a model as on its flat weights.
    """
    kind: Callable[..., Optimizer] = type(optimizer)
    copy = kind(parameters, lr=1.0)
    # The first group's settings are those of all: flat weights are a single parameter.
    settings = {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}
    for group in copy.param_groups:
        group.update(settings)
    return copy


class Asgd(Asynchronous):
    """Asynchronous SGD; worker 0, the parameter server, has weights and optimizer state (A19).

    A worker pushes its gradient, pulls the current weights and continues; no worker waits for the
    gradient of another. The server updates the weights with the mean of every `parts` gradients.
    The training loop's optimizer sees no gradients: an optimizer of the same class and settings
    updates the weights on worker 0, on its device. The bytes reported are those of worker 0, which
    sends the weights to all workers. The server keeps the matrices of a TDNN-F semi-orthogonal.
    """

    applies_constraints = True

    def start(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Implement `Strategy.start`."""
        super().start(model, optimizer)
        config, workers = self.config.asgd, self.workers
        self._gradient: Tensor | None = None
        device = self.flat.parameters[0].device
        self._streams = streams_of(device)
        self._make_copies = lambda: HostCopies(self._streams, len(self.flat), device)
        self._copies = self._make_copies()
        self._exchange = PointToPoint(workers, len(self.flat), self._streams)
        self.server: ParameterServer | None = None
        """The parameter server on worker 0; None on the other workers."""
        if workers.rank == 0:
            self.server = ParameterServer(
                self.flat.weights(),
                optimizer,
                config.gradients_per_update or workers.world_size,
                config.max_gradient_norm,
                self._streams,
                self._constrain,
            )
            self._exchange.serve(range(1, workers.world_size), self._answering)

    def _constrain(self, weights: Tensor, updates: int) -> None:
        """Keep the server's weight matrices semi-orthogonal, as `toolkit.models.tdnnf` does."""
        constrained = {id(matrix) for matrix in getattr(self.model, "semi_orthogonal", ())}
        pairs = zip(self.flat.parameters, self.flat.views(weights), strict=True)
        constrain_matrices(
            (view for parameter, view in pairs if id(parameter) in constrained), updates
        )

    def _answering(self) -> Answer:
        """Return the function that answers a worker's pushes."""
        copies, server = self._make_copies(), self.server

        def answer(gradient: Tensor, rate: float) -> Tensor:
            with copies.stream():
                return copies.to_host(server.add(copies.to_device(gradient), rate))

        return answer

    def stop(self, failed: bool = False) -> None:
        """Implement `Strategy.stop`."""
        super().stop(failed)
        if self._exchange is not None:
            exchange, self._exchange = self._exchange, None
            if not failed:
                exchange.close([0] if self.workers.rank else [])

    def backward(self, loss: Tensor, weight: Tensor, accumulated: bool = False) -> None:
        """Implement `Strategy.backward`: keep the gradient for `after_step`, which sends it.

        A gradient that is not finite stays in the model, where the training loop reports it.
        """
        super().backward(loss, weight, accumulated)
        gradient = self.flat.gradients()
        # The server has its weights on the device of rank 0; others send through the host.
        if self.server is None:
            gradient = self._copies.to_host(gradient)
        self._gradient = gradient if bool(gradient.isfinite().all()) else None
        if self._gradient is not None:
            self.optimizer.zero_grad(set_to_none=True)

    def after_step(self) -> None:
        """Implement `Strategy.after_step`: push the gradient, pull the weights."""
        super().after_step()
        self._exchange.check()
        if self._gradient is None:
            return
        rate = self.optimizer.param_groups[0]["lr"]
        # Push the gradient; the reply is the current weights, perhaps updated by it.
        if self.server is not None:
            weights = self.server.add(self._gradient, rate)
        else:
            reply = self._exchange.request(0, self._gradient, rate)
            weights = self._copies.to_device(reply)
        self.flat.set_weights(weights)

    def wait_for_checkpoint(self) -> None:
        """Implement `Asynchronous.wait_for_checkpoint`; all continue from the same weights."""
        super().wait_for_checkpoint()
        self._broadcast_weights()

    def end_epoch(self) -> None:
        """Apply the gradients that are left over; all workers continue from the same weights."""
        super().end_epoch()
        if self.server is not None:
            self.server.flush()
        self._broadcast_weights()

    def rank_state_dict(self) -> dict[str, Any]:
        """Return, on worker 0, the parameter server's optimizer state and pending gradients."""
        state = super().rank_state_dict()
        return state if self.server is None else {**state, "accumulator": self.server.state_dict()}

    def load_state_dict(self, state: dict[str, Any], rank_states: Sequence[dict[str, Any]]) -> None:
        """Implement `Strategy.load_state_dict`."""
        super().load_state_dict(state, rank_states)
        if self.server is not None:
            if state:
                self.server.load_state_dict(rank_states[0]["accumulator"])
            self.server.set_weights(self.flat.weights())
        self._broadcast_weights()

    def _broadcast_weights(self) -> None:
        """Broadcast the server's weights to all workers (collective)."""
        weights = self.flat.weights()
        if self.server is not None:
            weights.copy_(self.server.weights())
        self.workers.broadcast(weights)
        self.flat.set_weights(weights)
