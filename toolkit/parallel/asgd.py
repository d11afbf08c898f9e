"""A-SGD: a worker's next step begins once its gradient is added to the accumulated one (A19)."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from toolkit.parallel.asynchronous import Asynchronous
from toolkit.parallel.batch import DataSource
from toolkit.parallel.exchange import Exchange
from toolkit.parallel.learner import Accumulator
from toolkit.parallel.shared import SharedBatches


class Asgd(Asynchronous):
    """Asynchronous SGD through worker 0, which keeps the weights and the optimizer's state (A19).

    A worker sends its gradient, gets the weights as they are then, and goes on; nobody waits for
    another's gradient. The mean of every `parts` gradients makes an update. The optimizer of the
    training loop sees no gradients; one of its class and settings updates the weights at worker 0.
    Checkpoints are made at the ends of epochs only, since workers are not at the same step. The
    bytes reported are those of worker 0, which sends weights to all.
    """

    def start(self, model: nn.Module, optimizer: Optimizer) -> None:
        """See `Strategy`."""
        super().start(model, optimizer)
        config, workers = self.config.asgd, self.workers
        self._gradient: Tensor | None = None
        self._exchange = Exchange(workers, len(self.flat))
        self._accumulator = Accumulator(
            self.flat.weights().cpu(),
            optimizer,
            config.parts or workers.ranks,
            config.max_gradient_norm,
        )
        """At worker 0 the one that counts."""
        if workers.rank == 0:
            self._exchange.serve(range(1, workers.ranks), self._accumulator.add)

    def share(self, data: DataSource) -> DataSource:
        """See `Strategy`: fast workers take over batches of slow ones."""
        return SharedBatches(data)

    def stop(self, failed: bool = False) -> None:
        """See `Strategy`."""
        super().stop(failed)
        if self._exchange is not None:
            exchange, self._exchange = self._exchange, None
            if not failed:
                exchange.close([0] if self.workers.rank else [])

    def backward(self, loss: Tensor, weight: Tensor) -> None:
        """See `Strategy`: take the gradient aside; one that is not finite is left to the loop."""
        super().backward(loss, weight)
        gradient = self.flat.gradients().cpu()
        self._gradient = gradient if bool(gradient.isfinite().all()) else None
        if self._gradient is not None:
            self.optimizer.zero_grad(set_to_none=True)

    def after_step(self) -> None:
        """See `Strategy`: give the gradient, take weights."""
        super().after_step()
        self._exchange.check()
        if self._gradient is None:
            return
        rate = self.optimizer.param_groups[0]["lr"]
        if self.workers.rank == 0:
            weights = self._accumulator.add(self._gradient, rate)
        else:
            weights = self._exchange.request(0, self._gradient, rate)
        self.flat.set_weights(weights)

    def end_epoch(self) -> None:
        """See `Strategy`: use the gradients left over; all go on from the same weights."""
        super().end_epoch()
        self._accumulator.flush()
        self._spread()

    def own_state(self) -> dict[str, Any]:
        """See `Strategy`: at worker 0, the state of the optimizer that makes the updates."""
        own = super().own_state()
        return {**own, "accumulator": self._accumulator.state()} if self.workers.rank == 0 else own

    def load_state(self, state: dict[str, Any], own: Sequence[dict[str, Any]]) -> None:
        """See `Strategy`."""
        super().load_state(state, own)
        if self.workers.rank == 0:
            if state:
                self._accumulator.load_state(own[0]["accumulator"])
            self._accumulator.set_weights(self.flat.weights().cpu())
        self._spread()

    def _spread(self) -> None:
        """Give worker 0's weights to all (all)."""
        weights = self.flat.weights()
        if self.workers.rank == 0:
            weights.copy_(self._accumulator.weights())
        self.workers.broadcast(weights)
        self.flat.set_weights(weights)
