"""Synchronous SGD: gradients, or models, averaged over all workers at every step (A19, B1)."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from toolkit.parallel.workers import Distributed, Workers

BUCKET_BYTES = 25 << 20  # as in torch's DistributedDataParallel
Exchange = TypeVar("Exchange")


class Buckets(Generic[Exchange]):
    """Gradients in buckets; a bucket's exchange begins as soon as the bucket is complete.

    Exchanges begin strictly from the first bucket to the last, in the same order on every worker.
    The first buckets hold the gradients of the last layers, which are ready first.

    Args:
      parameters: the trainable parameters.
      exchange: called with a bucket's index and its gradient [B]; begins the exchange.
      max_bytes: largest size in bytes of a bucket, unless a single parameter has more.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        exchange: Callable[[int, Tensor], Exchange],
        max_bytes: int = BUCKET_BYTES,
    ) -> None:
        self._begin_exchange = exchange
        self._buckets: list[list[nn.Parameter]] = [[]]
        for parameter in reversed(parameters):  # roughly the order in which gradients become ready
            size = sum(p.numel() * p.element_size() for p in self._buckets[-1])
            if self._buckets[-1] and size + parameter.numel() * 4 > max_bytes:
                self._buckets.append([])
            self._buckets[-1].append(parameter)
        self._ready: list[int] = []
        self._pending_exchanges: dict[int, Exchange] = {}
        self._active = False
        # The references to the graph's nodes keep these alive.
        self._hooked: dict[nn.Parameter, tuple[Any, RemovableHandle]] = {}
        self._hook()

    def sizes(self) -> list[int]:
        """Return the number of values of each bucket."""
        return [sum(p.numel() for p in bucket) for bucket in self._buckets]

    def remove(self) -> None:
        """Remove the hooks from the model."""
        for _, hook in self._hooked.values():
            hook.remove()

    @contextmanager
    def backward(self) -> Iterator[list[Exchange]]:
        """Return a context for a backward pass; its list holds all exchanges afterwards."""
        self._hook()
        self._ready = [0] * len(self._buckets)
        self._pending_exchanges = {}
        self._active = True
        exchanges: list[Exchange] = []
        try:
            yield exchanges
        finally:
            self._active = False
        for index in range(len(self._buckets)):
            if index not in self._pending_exchanges:  # one of its parameters got no gradient
                self._exchange(index)
        exchanges += [self._pending_exchanges[index] for index in range(len(self._buckets))]

    def set_gradients(self, index: int, flat: Tensor) -> None:
        """Set the gradients of a bucket's parameters to views of [B]."""
        bucket = self._buckets[index]
        for parameter, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
            parameter.grad = part.view_as(parameter)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Join the values [B] of all buckets to [W], in the order of the parameters."""
        # Buckets and their parameters are in the reverse order of the model's.
        values = [
            of_parameter
            for bucket, part in zip(self._buckets, parts, strict=True)
            for of_parameter in part.split([p.numel() for p in bucket])
        ]
        return torch.cat(values[::-1])

    def divide(self, flat: Tensor) -> list[Tensor]:
        """Divide [W], in the order of the parameters, into the values [B] of each bucket."""
        sizes = [p.numel() for bucket in self._buckets for p in bucket]
        values = iter(flat.split(sizes[::-1])[::-1])
        return [torch.cat([next(values) for _ in bucket]) for bucket in self._buckets]

    def _hook(self) -> None:
        """Hook the gradient-accumulation nodes; a parameter that was moved has a new node."""
        for index, bucket in enumerate(self._buckets):
            for parameter in bucket:
                node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
                hooked, hook = self._hooked.get(parameter, (None, None))
                if node is hooked:
                    continue
                if hook is not None:
                    hook.remove()
                self._hooked[parameter] = node, node.register_hook(self._make_hook(index))

    def _make_hook(self, index: int) -> Callable[..., None]:
        def hook(*_: object) -> None:
            if self._active:
                self._ready[index] += 1
                if self._ready[index] == len(self._buckets[index]):
                    self._exchange_in_order()

        return hook

    def _exchange_in_order(self) -> None:
        """Begin the exchanges of complete buckets, strictly from first to last."""
        for index, bucket in enumerate(self._buckets):
            if index in self._pending_exchanges:
                continue
            if self._ready[index] < len(bucket):
                return
            self._exchange(index)

    def _exchange(self, index: int) -> None:
        """Pass the gradients of a bucket to the exchange, as one vector."""
        parts = [
            (torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1)
            for p in self._buckets[index]
        ]
        self._pending_exchanges[index] = self._begin_exchange(index, torch.cat(parts))


class Ssgd(Distributed):
    """Every step uses the gradient of the mean loss over the batches of all workers.

    Gradients are all-reduced bucket by bucket, overlapping with the backward pass. A worker counts
    by the weight of its batch (frames), so that N workers equal one with N times the batch.
    """

    has_equal_replicas = True

    def start(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Implement `Strategy.start`."""
        super().start(model, optimizer)
        self._buckets = GradientBuckets(self.flat.parameters, self.workers)

    def stop(self, failed: bool = False) -> None:
        """Implement `Strategy.stop`."""
        if hasattr(self, "_buckets"):
            self._buckets.remove()

    def backward(self, loss: Tensor, weight: Tensor, accumulated: bool = False) -> None:
        """Compute the gradients, and exchange them together with those accumulated before."""
        self._buckets.backward(loss, weight)


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
        """Compute the gradients of the mean loss over the workers; the host reads no value.

        Args:
          loss: this worker's loss, summed over its batch.
          weight: divisor of this worker's loss.
        """
        local_weight = weight.detach().float().reshape(1).clone()
        total_weight = self._workers.all_reduce(local_weight, self._group)
        with self._buckets.backward() as reductions:
            loss.backward()  # of the sum, so that workers count by their batches' weights
        for index, reduction in enumerate(reductions):
            self._buckets.set_gradients(index, reduction.wait())
        # Gradient of the mean loss over all workers: sum_i grad(loss_i) / sum_i weight_i
        divisor = total_weight.wait()
        for parameter in self._parameters:
            parameter.grad /= divisor


class Scpsgd(Distributed):
    """Every worker takes a local step, then all models are averaged (B1).

    This is ADPSGD with a mixing matrix of 1/K everywhere, for K workers. With plain SGD or momentum
    it equals S-SGD, if the workers' batches have equal weights and no gradient is clipped.
    """

    has_equal_replicas = True

    def after_step(self) -> None:
        """Implement `Strategy.after_step`."""
        super().after_step()
        # x_i <- 1/K sum_j x_j: the mixing matrix whose entries are all 1/K
        summed = self.workers.all_reduce(self.flat.weights()).wait()
        self.flat.set_weights(summed / self.workers.world_size)

    def rank_state_dict(self) -> dict[str, Any]:
        """Return the optimizer state, which comes from this worker's gradients."""
        return super().rank_state_dict() | {"optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any], rank_states: Sequence[dict[str, Any]]) -> None:
        """Restore a checkpoint; additional workers start from the optimizer state of rank 0."""
        super().load_state_dict(state, rank_states)
        if rank_states:
            self.optimizer.load_state_dict(rank_states[0]["optimizer"])
