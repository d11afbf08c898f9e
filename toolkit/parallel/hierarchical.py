"""H-ADPSGD: gradients are averaged inside a node, models between nodes (B3)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from toolkit.parallel.adpsgd import Adpsgd
from toolkit.parallel.config import ParallelError
from toolkit.parallel.shared_batches import Node
from toolkit.parallel.ssgd import GradientBuckets


class HierarchicalAdpsgd(Adpsgd):
    """ADPSGD whose learners are nodes of several workers, the super-learners (B3).

    Within a node every step uses the gradient of the mean loss over its workers' batches (S-SGD),
    so that they take the same step. The first worker of each node alone copies the model to the
    host, where it is averaged with those of other nodes in the background, and broadcasts the
    result to its node over the links between devices: a host copies, sends and averages one model
    where ADPSGD does so with one per worker (B6). Nodes take batches at their own pace. With a
    single node the method is S-SGD.
    """

    def start(self, model: nn.Module, optimizer: Optimizer) -> None:
        """See `Strategy`.

        Raises:
          ParallelError: the number of workers is not a multiple of the node's.
        """
        rank, world_size = self.workers.rank, self.workers.world_size
        self._size = self.config.adpsgd.node or self.workers.local_world_size
        if world_size % self._size:
            raise ParallelError(
                f"{world_size} workers are not whole nodes of {self._size}: start as many on "
                "each host, or choose parallel.adpsgd.node"
            )
        number = rank // self._size
        nodes = [range(i, i + self._size) for i in self.learners()]
        self._inside = [self.workers.new_group(node) for node in nodes][number]
        control = self._inside
        if self.workers.cuda:
            control = [self.workers.new_group(node, "gloo") for node in nodes][number]
        self._node = Node(number, len(nodes), self._size, control)
        super().start(model, optimizer)
        self._buckets = GradientBuckets(self.flat.parameters, self.workers, self._inside)

    def learners(self) -> Sequence[int]:
        """See `Adpsgd`: the first worker of each node."""
        return range(0, self.workers.world_size, self._size)

    def node(self) -> Node:
        """See `Asynchronous`."""
        return self._node

    def stop(self, failed: bool = False) -> None:
        """See `Strategy`."""
        if hasattr(self, "_buckets"):
            self._buckets.remove()
        super().stop(failed)

    def backward(self, loss: Tensor, weight: Tensor, accumulated: bool = False) -> None:
        """See `Strategy`: as in S-SGD, within the node."""
        self._buckets.backward(loss, weight)

    def after_step(self) -> None:
        """See `Strategy`: the first worker mixes the models, all of its node take them over."""
        super().after_step()
        if len(self.learners()) > 1:
            self._pass_on(None if self._learner is None else self._taken)

    def report(self) -> dict[str, float]:
        """See `Strategy`; `bytes_between_per_step`: bytes this worker sends to other nodes."""
        between = 0 if self._exchange is None else self._exchange.sent
        return {**super().report(), "bytes_between_per_step": between / max(1, self.steps)}

    def _take(self, weights: Tensor) -> None:
        """See `Adpsgd`; the weights of the node's first worker count."""
        super()._take(weights)
        self._pass_on(None if self._learner is None else weights)

    def _average(self) -> Tensor:
        """See `Adpsgd`; on every rank."""
        mean = super()._average()
        return self._pass_on(None if self._learner is None else mean)

    def _pass_on(self, weights: Tensor | None) -> Tensor:
        """Broadcast the weights that the node's first worker gives, and use them in its others."""
        passed = torch.empty(len(self.flat), device=self.flat.parameters[0].device)
        if weights is not None:
            passed.copy_(weights)
        self.workers.broadcast(passed, self._node.leader, self._inside)
        if weights is None:
            self.flat.set_weights(passed)
        return passed
