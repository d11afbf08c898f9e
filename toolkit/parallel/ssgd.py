"""Synchronous SGD: gradients, or models, averaged over all workers at every step (A19, B1)."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from toolkit.parallel.distributed import Distributed
from toolkit.parallel.process_group import PendingAllReduce, Workers

BUCKET_BYTES = 25 << 20  # as in torch's DistributedDataParallel


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

    def backward(self, loss: Tensor, weight: Tensor) -> None:
        """See `Strategy`."""
        total_weight = self.workers.all_reduce(weight.detach().float().reshape(1).clone())
        with self._buckets.all_reducing():
            loss.backward()
        weights = total_weight.wait()
        for parameter in self.flat.parameters:
            parameter.grad /= weights

    def state(self) -> dict[str, Any]:
        """See `Strategy`; the workers' weights are compared."""
        self.check_replicas()
        return super().state()


class GradientBuckets:
    """Gradients in buckets, each of which is all-reduced as soon as it is complete.

    Args:
      parameters: the trainable parameters.
      workers: the process group.
      group: the subgroup of workers that takes part; by default all.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], workers: Workers, group: object = None
    ) -> None:
        self._workers, self._group = workers, group
        self._buckets: list[list[nn.Parameter]] = [[]]
        for parameter in reversed(parameters):  # roughly the order in which gradients become ready
            size = sum(p.numel() * p.element_size() for p in self._buckets[-1])
            if self._buckets[-1] and size + parameter.numel() * 4 > BUCKET_BYTES:
                self._buckets.append([])
            self._buckets[-1].append(parameter)
        self._ready: list[int] = []
        self._pending: dict[int, PendingAllReduce] = {}
        self._active = False
        # The references keep the nodes alive.
        self._hooked: dict[nn.Parameter, tuple[Any, RemovableHandle]] = {}
        self._hook()

    def remove(self) -> None:
        """Remove the hooks from the model."""
        for _, hook in self._hooked.values():
            hook.remove()

    @contextmanager
    def all_reducing(self) -> Iterator[None]:
        """Context of a backward pass, after which every `grad` is the sum over the workers."""
        self._hook()
        self._ready = [0] * len(self._buckets)
        self._pending = {}
        self._active = True
        try:
            yield
        finally:
            self._active = False
        for index in range(len(self._buckets)):
            if index not in self._pending:  # one of its parameters got no gradient
                self._reduce(index)
        for index, bucket in enumerate(self._buckets):
            summed = self._pending[index].wait()
            for parameter, part in zip(
                bucket, summed.split([p.numel() for p in bucket]), strict=True
            ):
                parameter.grad = part.view_as(parameter)

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
                    self._reduce_in_order()

        return hook

    def _reduce_in_order(self) -> None:
        """Reduce complete buckets, strictly from first to last: the same order on every worker."""
        for index, bucket in enumerate(self._buckets):
            if index in self._pending:
                continue
            if self._ready[index] < len(bucket):
                return
            self._reduce(index)

    def _reduce(self, index: int) -> None:
        parts = [
            (torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1)
            for p in self._buckets[index]
        ]
        self._pending[index] = self._workers.all_reduce(torch.cat(parts), self._group)


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

    def state(self) -> dict[str, Any]:
        """See `Strategy`; the workers' weights are compared."""
        self.check_replicas()
        return super().state()

    def rank_state(self) -> dict[str, Any]:
        """See `Strategy`: the optimizer state, which comes from this worker's gradients."""
        return super().rank_state() | {"optimizer": self.optimizer.state_dict()}

    def load_state(self, state: dict[str, Any], own: Sequence[dict[str, Any]]) -> None:
        """See `Strategy`; additional workers start from the optimizer state of rank 0."""
        super().load_state(state, own)
        if own:
            self.optimizer.load_state_dict(own[0]["optimizer"])
