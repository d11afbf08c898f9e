"""Synchronous SGD: gradients, or models, averaged over all workers at every step (A19, B1)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from toolkit.parallel.distributed import Distributed
from toolkit.parallel.launch import Pending, Workers

BUCKET_BYTES = 25 << 20  # as in torch's DistributedDataParallel


class Ssgd(Distributed):
    """Every step uses the gradient of the mean loss over the batches of all workers.

    Gradients are added up bucket by bucket while the backward pass goes on. A worker's part counts
    by its weight (frames), so that N workers do what one does with N times the batch.
    """

    def start(self, model: nn.Module, optimizer: Optimizer) -> None:
        """See `Strategy`."""
        super().start(model, optimizer)
        self._buckets = Buckets(self.flat.parameters, self.workers)

    def stop(self, failed: bool = False) -> None:
        """See `Strategy`."""
        if hasattr(self, "_buckets"):
            self._buckets.remove()

    def backward(self, loss: Tensor, weight: Tensor) -> None:
        """See `Strategy`."""
        whole = self.workers.add_up(weight.detach().float().reshape(1).clone())
        with self._buckets.adding_up():
            loss.backward()
        weights = whole.wait()
        for parameter in self.flat.parameters:
            parameter.grad /= weights

    def state(self) -> dict[str, Any]:
        """See `Strategy`; all workers' weights are compared."""
        self.check_replicas()
        return super().state()


class Buckets:
    """Gradients of a model in buckets, each of which is added up over the workers once it is full.

    Args:
      parameters: those with gradients.
      workers: whose gradients are added up.
      group: those of the workers who take part; by default all.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], workers: Workers, group: object = None
    ) -> None:
        self._workers, self._group = workers, group
        self._buckets: list[list[nn.Parameter]] = [[]]
        for parameter in reversed(parameters):  # about the order in which gradients come
            size = sum(p.numel() * p.element_size() for p in self._buckets[-1])
            if self._buckets[-1] and size + parameter.numel() * 4 > BUCKET_BYTES:
                self._buckets.append([])
            self._buckets[-1].append(parameter)
        self._ready: list[int] = []
        self._pending: dict[int, Pending] = {}
        self._active = False
        self._hooked: dict[nn.Parameter, tuple[Any, RemovableHandle]] = {}  # keeps nodes alive
        self._hook()

    def remove(self) -> None:
        """Take the hooks out of the model."""
        for _, hook in self._hooked.values():
            hook.remove()

    @contextmanager
    def adding_up(self) -> Iterator[None]:
        """Around a backward pass: afterwards every `grad` is the sum over the workers."""
        self._hook()
        self._ready = [0] * len(self._buckets)
        self._pending = {}
        self._active = True
        try:
            yield
        finally:
            self._active = False
        for index in range(len(self._buckets)):
            if index not in self._pending:  # one of its parameters was not used
                self._begin(index)
        for index, bucket in enumerate(self._buckets):
            summed = self._pending[index].wait()
            for parameter, part in zip(
                bucket, summed.split([p.numel() for p in bucket]), strict=True
            ):
                parameter.grad = part.view_as(parameter)

    def _hook(self) -> None:
        """Hook the nodes that accumulate gradients; a parameter moved to a device has a new one."""
        for index, bucket in enumerate(self._buckets):
            for parameter in bucket:
                node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
                hooked, hook = self._hooked.get(parameter, (None, None))
                if node is hooked:
                    continue
                if hook is not None:
                    hook.remove()
                self._hooked[parameter] = node, node.register_hook(self._counted(index))

    def _counted(self, index: int):  # noqa: ANN202
        def hook(*_: object) -> None:
            if self._active:
                self._ready[index] += 1
                if self._ready[index] == len(self._buckets[index]):
                    self._begin_in_order()

        return hook

    def _begin_in_order(self) -> None:
        """Begin the buckets that are full, always from the first on: alike on every worker."""
        for index, bucket in enumerate(self._buckets):
            if index in self._pending:
                continue
            if self._ready[index] < len(bucket):
                return
            self._begin(index)

    def _begin(self, index: int) -> None:
        parts = [
            (torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1)
            for p in self._buckets[index]
        ]
        self._pending[index] = self._workers.add_up(torch.cat(parts), self._group)


class Scpsgd(Distributed):
    """Every worker takes a step of its own, then all models are averaged (B1).

    It is ADPSGD with the mixing matrix 11'/K. With plain SGD or momentum it does what S-SGD does,
    when the workers' batches weigh the same and no gradient is clipped.
    """

    def after_step(self) -> None:
        """See `Strategy`."""
        super().after_step()
        summed = self.workers.add_up(self.flat.weights()).wait()
        self.flat.set_weights(summed / self.workers.ranks)

    def state(self) -> dict[str, Any]:
        """See `Strategy`; all workers' weights are compared."""
        self.check_replicas()
        return super().state()

    def own_state(self) -> dict[str, Any]:
        """See `Strategy`: the optimizer's momentum is of this worker's gradients."""
        return super().own_state() | {"optimizer": self.optimizer.state_dict()}

    def load_state(self, state: dict[str, Any], own: Sequence[dict[str, Any]]) -> None:
        """See `Strategy`; new workers begin with the optimizer state of rank 0."""
        super().load_state(state, own)
        if own:
            self.optimizer.load_state_dict(own[0]["optimizer"])
