"""Synchronous SGD: gradients, or models, averaged over all workers at every step (A19, B1)."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from toolkit.parallel.buckets import Buckets
from toolkit.parallel.distributed import Distributed
from toolkit.parallel.process_group import Workers


class Ssgd(Distributed):
    """Every step uses the gradient of the mean loss over the batches of all workers.

    Gradients are all-reduced bucket by bucket, overlapping with the backward pass. Workers count by
    the weights of their batches (frames), so that N workers equal one with N times the batch.
    """

    def start(self, model: nn.Module, optimizer: Optimizer) -> None:
        """See `Strategy`."""
        super().start(model, optimizer)
        self._buckets = GradientBuckets(self.flat.parameters, self.workers)

    def stop(self, failed: bool = False) -> None:
        """See `Strategy`."""
        if hasattr(self, "_buckets"):
            self._buckets.remove()

    def backward(self, loss: Tensor, weight: Tensor, accumulated: bool = False) -> None:
        """See `Strategy`; what was accumulated is in the buckets with what is added to it."""
        self._buckets.backward(loss, weight)

    def state_dict(self) -> dict[str, Any]:
        """See `Strategy`; the workers' weights are compared."""
        self.check_replicas()
        return super().state_dict()


class GradientBuckets:
    """Gradients that are summed over workers, bucket by bucket, during the backward pass.

    Args:
      parameters: the trainable parameters.
      workers: the process group.
      group: the subgroup of workers that takes part; by default all.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], workers: Workers, group: object = None
    ) -> None:
        self._workers, self._group, self._parameters = workers, group, parameters
        self._buckets = Buckets(parameters, lambda _, part: workers.all_reduce(part, group))

    def remove(self) -> None:
        """Remove the hooks from the model."""
        self._buckets.remove()

    def backward(self, loss: Tensor, weight: Tensor) -> None:
        """Compute the gradients of the mean loss over the workers; no value is read by the host.

        Args:
          loss: this worker's, summed over its batch.
          weight: divisor of the loss, of this worker's batch.
        """
        own = weight.detach().float().reshape(1).clone()
        total = self._workers.all_reduce(own, self._group)
        with self._buckets.backward() as reductions:
            loss.backward()
        for index, reduction in enumerate(reductions):
            self._buckets.set_gradients(index, reduction.wait())
        weights = total.wait()
        for parameter in self._parameters:
            parameter.grad /= weights


class Scpsgd(Distributed):
    """Every worker takes a local step, then all models are averaged (B1).

    This is ADPSGD with the mixing matrix 11'/K. With plain SGD or momentum it equals S-SGD, if the
    workers' batches have equal weights and no gradient is clipped.
    """

    def after_step(self) -> None:
        """See `Strategy`."""
        super().after_step()
        summed = self.workers.all_reduce(self.flat.weights()).wait()
        self.flat.set_weights(summed / self.workers.world_size)

    def state_dict(self) -> dict[str, Any]:
        """See `Strategy`; the workers' weights are compared."""
        self.check_replicas()
        return super().state_dict()

    def rank_state_dict(self) -> dict[str, Any]:
        """See `Strategy`: the optimizer state, which comes from this worker's gradients."""
        return super().rank_state_dict() | {"optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any], rank_states: Sequence[dict[str, Any]]) -> None:
        """See `Strategy`; additional workers start from the optimizer state of rank 0."""
        super().load_state_dict(state, rank_states)
        if rank_states:
            self.optimizer.load_state_dict(rank_states[0]["optimizer"])
