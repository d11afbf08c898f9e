"""GTC's exchange on a GPU: bucket by bucket during the backward pass, with no value read (C28)."""

import torch
from torch import Tensor

from toolkit.parallel.buckets import BUCKET_BYTES, Buckets
from toolkit.parallel.distributed import Distributed
from toolkit.parallel.fixed_messages import Rooms, decode, encode
from toolkit.parallel.gtc_state import adapted
from toolkit.parallel.process_group import Pending
from toolkit.parallel.streams import Streams, streams_of


class FixedMessages:
    """See `toolkit.parallel.gtc.Exchange`.

    As soon as a bucket's gradients are complete they are encoded, on a stream beside the backward
    pass, and the messages of all workers collected; they are decoded after the pass. A threshold of
    0 sends everything: the gradients are summed by an all-reduce.

    Args:
      strategy: the method, with its parameters as one vector.
      streams: of the device; by default its own.
      most: bytes of a bucket.
    """

    def __init__(
        self, strategy: Distributed, streams: Streams | None = None, most: int = BUCKET_BYTES
    ) -> None:
        self._workers, self._config = strategy.workers, strategy.config.gtc
        device = strategy.flat.parameters[0].device
        self._streams = streams_of(device) if streams is None else streams
        self._side = self._streams.new()
        self._buckets = Buckets(strategy.flat.parameters, self._begin, most)
        self._sizes = self._buckets.sizes()
        self._residuals = [torch.zeros(size, device=device) for size in self._sizes]
        self._rooms, self._room = Rooms(self._sizes, self._streams), []
        self._tau = torch.full((), self._config.threshold, device=device)

    @property
    def threshold(self) -> Tensor:
        """See `Exchange`."""
        return self._tau

    @threshold.setter
    def threshold(self, value: float) -> None:
        self._tau.fill_(value)

    def backward(self, loss: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """See `Exchange`."""
        weights = self._workers.all_reduce(weight.detach().float().reshape(1).clone())
        if self._config.threshold:
            self._room = self._rooms.next()
        with self._buckets.backward() as exchanges:
            loss.backward()
        numbers, sent = [], 0.0
        for index, (_, exchange, encoded) in enumerate(exchanges):
            self._streams.wait(encoded)
            total, beyond = self._finish(index, exchange.wait())
            self._buckets.set_gradients(index, total)
            numbers.append(beyond.amax().float())
            room = self._room[index] if self._config.threshold else self._sizes[index]
            sent = sent + beyond.clamp(max=room).float().sum()
        density = sent / (self._workers.world_size * sum(self._sizes))
        if self._config.threshold:
            self._rooms.add(torch.stack(numbers))
        self._tau = adapted(self._tau, density, self._config)
        return weights.wait()[0], density

    def residual(self) -> Tensor:
        """See `Exchange`."""
        return self._buckets.joined(self._residuals)

    def set_residual(self, residual: Tensor) -> None:
        """See `Exchange`."""
        parts = self._buckets.parted(residual)
        for own, part in zip(self._residuals, parts, strict=True):
            own.copy_(part)

    def stop(self) -> None:
        """See `Exchange`."""
        self._buckets.remove()

    def _begin(self, index: int, gradient: Tensor) -> tuple[Tensor, Pending, object]:
        """Encode a bucket's gradient and begin to collect all workers' messages.

        The gradient is returned as well, so that its memory is not given to later operations of the
        backward pass before the side stream has read it.
        """
        ready = self._streams.record()
        with self._streams.use(self._side):
            self._streams.wait(ready)
            residual = self._residuals[index]
            if not self._config.threshold:
                residual += gradient
                exchange = self._workers.all_reduce(residual.clone())
                residual.zero_()
            else:
                message = encode(gradient, residual, self._tau, self._room[index])
                exchange = self._workers.gather(message)
            return gradient, exchange, self._streams.record()

    def _finish(self, index: int, found: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum [B] of what all workers sent, and the number of elements of each: [N]."""
        size = self._sizes[index]
        if self._config.threshold:
            return decode(found, self._tau, size)
        return found, torch.full((self._workers.world_size,), size, device=found.device)
