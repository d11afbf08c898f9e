"""H-ADPSGD: gradients are averaged inside a node, models between nodes (B3)."""

from torch import Tensor, nn
from torch.optim import Optimizer

from toolkit.parallel.adpsgd import Adpsgd, NeighbourAverager
from toolkit.parallel.batch import DataSource
from toolkit.parallel.config import ParallelError
from toolkit.parallel.point_to_point import PointToPoint
from toolkit.parallel.ssgd import GradientBuckets


class HierarchicalAdpsgd(Adpsgd):
    """ADPSGD whose learners are nodes of several workers, the super-learners (B3).

    Within a node every step uses the gradient of the mean loss over its workers' batches (S-SGD).
    The first worker of each node averages the node's model with those of other nodes in the
    background and broadcasts the result to its node. So a host sends and averages one model where
    ADPSGD sends one per worker. With a single node the method is S-SGD.
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
        self._leaders = range(0, world_size, self._size)
        self._leader = rank - rank % self._size
        groups = [self.workers.new_group(range(i, i + self._size)) for i in self._leaders]
        self._node = groups[rank // self._size]
        super().start(model, optimizer)
        self._buckets = GradientBuckets(self.flat.parameters, self.workers, self._node)

    def share_batches(self, data: DataSource) -> DataSource:
        """See `Strategy`: unchanged, since the workers of a node keep in step."""
        return data

    def stop(self, failed: bool = False) -> None:
        """See `Strategy`."""
        if hasattr(self, "_buckets"):
            self._buckets.remove()
        super().stop(failed)

    def backward(self, loss: Tensor, weight: Tensor) -> None:
        """See `Strategy`: as in S-SGD, within the node."""
        total_weight = self.workers.all_reduce(
            weight.detach().float().reshape(1).clone(), self._node
        )
        with self._buckets.all_reducing():
            loss.backward()
        weights = total_weight.wait()
        for parameter in self.flat.parameters:
            parameter.grad /= weights

    def report(self) -> dict[str, float]:
        """See `Strategy`; `bytes_between_per_step`: bytes this worker sends to other nodes."""
        between = 0 if self._averager is None else self._exchange.sent
        return {**super().report(), "bytes_between_per_step": between / max(1, self.steps)}

    def _make_averager(self) -> NeighbourAverager | None:
        if len(self._leaders) == 1:
            return None
        self._exchange = PointToPoint(self.workers, len(self.flat))
        leads = self._leader == self.workers.rank
        index = self.workers.rank // self._size
        learner = self._learner if leads else None
        return NeighbourAverager(
            self._exchange, learner, self._leaders, index, self.config.adpsgd.pattern
        )

    def _mix(self, now: Tensor) -> Tensor | None:
        """Let the first worker of the node add the update; all take over its weights."""
        if len(self._leaders) == 1:
            self._learner.set_weights(now)
            return None
        mixed = super()._mix(now)
        if self._averager is not None:
            mixed = mixed.to(self.flat.parameters[0].device)
            self.workers.broadcast(mixed, self._leader, self._node)
            if (
                self._leader != self.workers.rank
            ):  # the first worker's changes meanwhile by averaging
                self._taken = mixed.cpu()
                self._learner.set_weights(self._taken)
        return mixed

    def _average(self) -> Tensor:
        """Average over nodes: each node counts once, with its first worker's model."""
        weights = self._learner.weights()
        if self._leader != self.workers.rank:
            weights.zero_()
        return self.workers.all_reduce(weights, self._group).wait() / len(self._leaders)
