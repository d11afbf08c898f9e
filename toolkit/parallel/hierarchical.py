"""H-ADPSGD: gradients are averaged inside a node, models between nodes (B3)."""

from torch import Tensor, nn
from torch.optim import Optimizer

from toolkit.parallel.adpsgd import Adpsgd, Neighbours
from toolkit.parallel.batch import DataSource
from toolkit.parallel.config import ParallelError
from toolkit.parallel.exchange import Exchange
from toolkit.parallel.ssgd import Buckets


class HierarchicalAdpsgd(Adpsgd):
    """The workers of a node are one learner of ADPSGD, a super-learner (B3).

    Inside a node every step uses the gradient of the mean loss over its workers' batches. The first
    worker of each node averages the node's model with other nodes' in the background and passes on
    what came of it. So a host sends and averages one model where ADPSGD does as many as it has
    workers. With one node it is S-SGD.
    """

    def start(self, model: nn.Module, optimizer: Optimizer) -> None:
        """See `Strategy`.

        Raises:
          ParallelError: the workers do not make whole nodes.
        """
        rank, ranks = self.workers.rank, self.workers.ranks
        self._size = self.config.adpsgd.node or self.workers.local_ranks
        if ranks % self._size:
            raise ParallelError(
                f"{ranks} workers are not whole nodes of {self._size}: start as many on each host, "
                "or choose parallel.adpsgd.node"
            )
        self._leaders = range(0, ranks, self._size)
        self._leader = rank - rank % self._size
        groups = [self.workers.new_group(range(i, i + self._size)) for i in self._leaders]
        self._node = groups[rank // self._size]
        super().start(model, optimizer)
        self._buckets = Buckets(self.flat.parameters, self.workers, self._node)

    def share(self, data: DataSource) -> DataSource:
        """See `Strategy`: the workers of a node keep step with each other."""
        return data

    def stop(self, failed: bool = False) -> None:
        """See `Strategy`."""
        if hasattr(self, "_buckets"):
            self._buckets.remove()
        super().stop(failed)

    def backward(self, loss: Tensor, weight: Tensor) -> None:
        """See `Strategy`: as S-SGD does, inside the node."""
        whole = self.workers.add_up(weight.detach().float().reshape(1).clone(), self._node)
        with self._buckets.adding_up():
            loss.backward()
        weights = whole.wait()
        for parameter in self.flat.parameters:
            parameter.grad /= weights

    def report(self) -> dict[str, float]:
        """See `Strategy`; `bytes_between_per_step`: those sent to other nodes by this worker."""
        between = 0 if self._neighbours is None else self._exchange.sent
        return {**super().report(), "bytes_between_per_step": between / max(1, self.steps)}

    def _make_neighbours(self) -> Neighbours | None:
        if len(self._leaders) == 1:
            return None
        self._exchange = Exchange(self.workers, len(self.flat))
        leads = self._leader == self.workers.rank
        number = self.workers.rank // self._size
        learner = self._learner if leads else None
        return Neighbours(
            self._exchange, learner, self._leaders, number, self.config.adpsgd.pattern
        )

    def _mix(self, now: Tensor) -> Tensor | None:
        """Let the first worker add the node's update; all take over what it has then."""
        if len(self._leaders) == 1:
            self._learner.set_weights(now)
            return None
        mixed = super()._mix(now)
        if self._neighbours is not None:
            mixed = mixed.to(self.flat.parameters[0].device)
            self.workers.broadcast(mixed, self._leader, self._node)
            if self._leader != self.workers.rank:  # at the first worker averaging goes on meanwhile
                self._taken = mixed.cpu()
                self._learner.set_weights(self._taken)
        return mixed

    def _average(self) -> Tensor:
        """Each node's model counts once, as its first worker has it."""
        weights = self._learner.weights()
        if self._leader != self.workers.rank:
            weights.zero_()
        return self.workers.add_up(weights, self._group).wait() / len(self._leaders)
