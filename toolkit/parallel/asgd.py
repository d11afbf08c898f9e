"""A-SGD: asynchronous SGD through a parameter server on rank 0 (A19)."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from toolkit.models.semi_orthogonal import constrain_matrices
from toolkit.parallel.asynchronous import Asynchronous
from toolkit.parallel.learner import ParameterServer
from toolkit.parallel.point_to_point import Answer, PointToPoint
from toolkit.parallel.streams import Channel, streams_of


class Asgd(Asynchronous):
    """Asynchronous SGD; worker 0 is the parameter server with weights and optimizer state (A19).

    A worker pushes its gradient, pulls the current weights and goes on; no worker waits for the
    gradient of another. The server updates the weights with the mean of every `parts` gradients.
    The training loop's optimizer sees no gradients: an optimizer of the same class and settings
    updates the weights on worker 0, on its device. The bytes reported are those of worker 0, which
    sends the weights to all workers. Semi-orthogonal matrices (TDNN-F) are kept so on the server.
    """

    applies_constraints = True

    def start(self, model: nn.Module, optimizer: Optimizer) -> None:
        """See `Strategy`."""
        super().start(model, optimizer)
        config, workers = self.config.asgd, self.workers
        self._gradient: Tensor | None = None
        device = self.flat.parameters[0].device
        self._streams = streams_of(device)
        self._make_channel = lambda: Channel(self._streams, len(self.flat), device)
        self._channel = self._make_channel()
        self._exchange = PointToPoint(workers, len(self.flat), self._streams)
        self.server: ParameterServer | None = None
        """The parameter server, of worker 0 alone."""
        if workers.rank == 0:
            self.server = ParameterServer(
                self.flat.weights(),
                optimizer,
                config.parts or workers.world_size,
                config.max_gradient_norm,
                self._streams,
                self._constrain,
            )
            self._exchange.serve(range(1, workers.world_size), self._answering)

    def _constrain(self, weights: Tensor, updates: int) -> None:
        """Do to the server's weights what `toolkit.models.semi_orthogonal` does to a model."""
        own = {id(matrix) for matrix in getattr(self.model, "semi_orthogonal", ())}
        pairs = zip(self.flat.parameters, self.flat.views(weights), strict=True)
        constrain_matrices((view for parameter, view in pairs if id(parameter) in own), updates)

    def _answering(self) -> Answer:
        """Make what answers one worker's pushes."""
        channel, server = self._make_channel(), self.server

        def answer(gradient: Tensor, rate: float) -> Tensor:
            with channel.stream():
                return channel.to_host(server.add(channel.to_device(gradient), rate))

        return answer

    def stop(self, failed: bool = False) -> None:
        """See `Strategy`."""
        super().stop(failed)
        if self._exchange is not None:
            exchange, self._exchange = self._exchange, None
            if not failed:
                exchange.close([0] if self.workers.rank else [])

    def backward(self, loss: Tensor, weight: Tensor, accumulated: bool = False) -> None:
        """See `Strategy`: keep the gradient for `after_step`, where it is sent from.

        A gradient that is not finite stays in the model, where the training loop reports it.
        """
        super().backward(loss, weight, accumulated)
        gradient = self.flat.gradients()
        if self.server is None:
            gradient = self._channel.to_host(gradient)
        self._gradient = gradient if bool(gradient.isfinite().all()) else None
        if self._gradient is not None:
            self.optimizer.zero_grad(set_to_none=True)

    def after_step(self) -> None:
        """See `Strategy`: push the gradient, pull the weights."""
        super().after_step()
        self._exchange.check()
        if self._gradient is None:
            return
        rate = self.optimizer.param_groups[0]["lr"]
        if self.server is not None:
            weights = self.server.add(self._gradient, rate)
        else:
            reply = self._exchange.request(0, self._gradient, rate)
            weights = self._channel.to_device(reply)
        self.flat.set_weights(weights)

    def wait_for_checkpoint(self) -> None:
        """See `Asynchronous`; all continue from the same weights."""
        super().wait_for_checkpoint()
        self._broadcast_weights()

    def end_epoch(self) -> None:
        """See `Strategy`: apply the gradients left over; all continue from the same weights."""
        super().end_epoch()
        if self.server is not None:
            self.server.flush()
        self._broadcast_weights()

    def rank_state_dict(self) -> dict[str, Any]:
        """See `Strategy`: on worker 0, the parameter server's optimizer and pending gradients."""
        state = super().rank_state_dict()
        return state if self.server is None else {**state, "accumulator": self.server.state_dict()}

    def load_state_dict(self, state: dict[str, Any], rank_states: Sequence[dict[str, Any]]) -> None:
        """See `Strategy`."""
        super().load_state_dict(state, rank_states)
        if self.server is not None:
            if state:
                self.server.load_state_dict(rank_states[0]["accumulator"])
            self.server.set_weights(self.flat.weights())
        self._broadcast_weights()

    def _broadcast_weights(self) -> None:
        """Broadcast the server's weights to all workers (all)."""
        weights = self.flat.weights()
        if self.server is not None:
            weights.copy_(self.server.weights())
        self.workers.broadcast(weights)
        self.flat.set_weights(weights)
