"""The order of operations on a device, shown by fake streams that log it."""

import threading
import time
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.parallel.fake_streams import FakeStreams, comes_after
from toolkit.parallel.adpsgd import Learner, NeighbourAverager
from toolkit.parallel.asgd import ParameterServer
from toolkit.parallel.config import GtcConfig, ParallelConfig
from toolkit.parallel.gtc import FixedMessages, Gtc
from toolkit.parallel.messages import HostCopies

READ_BY_THE_HOST = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero"}


class Neighbour:
    """An exchange with a neighbour whose weights are 1; it replies when the test sets `reply`."""

    def __init__(self, streams):
        self._streams = streams
        self.asked, self.reply = threading.Event(), threading.Event()

    def start(self, target):
        self.thread = threading.Thread(target=target, name="communication", daemon=True)
        self.thread.start()

    def request(self, rank, weights):
        assert weights.data_ptr() in self._streams.pinned
        self._streams.note("sent")
        self.asked.set()
        assert self.reply.wait(20)
        self._streams.note("received")
        correction = self._streams.buffer(len(weights))
        return correction.copy_((weights - 1) / 2)

    def check(self):
        pass

    def close(self, servers):
        self.thread.join(20)


def test_training_continues_while_its_model_is_averaged():
    streams = FakeStreams()
    learner, exchange = Learner(torch.full((5,), 4.0), streams), Neighbour(streams)
    averager = NeighbourAverager(
        exchange, learner, [0, 1], 0, "fixed", lambda: HostCopies(streams, 5, "cpu")
    )
    learner.add(torch.ones(5))
    first = streams.note("first step")
    averager.wake()
    assert exchange.asked.wait(20)
    begun = streams.note("backward pass")  # while the message is on its way
    learner.add(torch.ones(5))
    second = streams.note("second step")
    exchange.reply.set()
    end = time.monotonic() + 20
    while learner.averagings < 1:
        assert time.monotonic() < end
        time.sleep(0.001)
    assert learner.weights().tolist() == [5.0 - 2.0 + 1.0] * 5
    third = streams.note("third step")
    averager.close()
    sent, received = streams.named("sent")[0], streams.named("received")[0]
    (waits,) = streams.named("the host waits")
    assert (waits.thread, waits.stream) == ("communication", "side 1")
    assert comes_after(sent, waits)  # a message that is complete,
    added = first.dependencies[-1]
    assert comes_after(waits, added)  # with the step before it
    for entry in (begun, second):  # the training waits for neither copy nor network
        assert not comes_after(entry, waits)
        assert not comes_after(entry, received)
    assert comes_after(third, received)  # on the device, and only for the averaging itself
    assert all(entry.thread == "communication" for entry in streams.log if "side" in entry.stream)
    assert averager.host_copies == 1


def test_an_answer_is_computed_on_the_device_between_two_copies():
    streams = FakeStreams()
    learner, channel = Learner(torch.zeros(4), streams), HostCopies(streams, 4, "cpu")
    replies = []
    for number in (2.0, 6.0, 10.0):
        with channel.stream(), streams.tracing():
            asking = channel.to_device(torch.full((4,), number))
            replies.append(channel.to_host(learner.average_with(asking)))
    assert learner.weights().tolist() == [6.75] * 4  # 0, 1, 3.5, 6.75
    assert [reply[0] for reply in replies] == [3.25, 2.5, 3.25]
    assert [entry.stream for entry in streams.named("copy_")] == ["side 1"] * 3
    assert len(streams.named("the host waits")) == 3
    assert replies[0].data_ptr() != replies[1].data_ptr()  # two buffers take turns
    assert replies[0].data_ptr() == replies[2].data_ptr()
    assert channel.count == 3


def test_a_parameter_server_takes_pushes_in_turns_on_its_device():
    streams = FakeStreams()
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(3))], lr=1.0)
    server = ParameterServer(torch.zeros(3), optimizer, parts=2, streams=streams)
    channels = [HostCopies(streams, 3, "cpu") for _ in range(2)]
    for channel in channels:
        with channel.stream():
            pulled = channel.to_host(server.add(channel.to_device(torch.ones(3)), 0.5))
    assert pulled.tolist() == [-0.5] * 3
    first, second = streams.named("the host waits")
    assert (first.stream, second.stream) == ("side 1", "side 2")
    waits = [entry for entry in streams.named("wait") if entry.stream == "side 2"]
    added = next(entry for entry in streams.named("record") if entry.stream == "side 1")
    assert comes_after(waits[0], added)  # the second push after the first, not after its reply
    assert not comes_after(second, first)


class Alone:
    """A group of one worker whose exchanges are logged."""

    rank, world_size, sent = 0, 1, 0.0

    def __init__(self, streams):
        self._streams = streams

    def barrier(self):
        pass

    def broadcast(self, tensor):
        pass

    def all_gather_object(self, value):
        return [value]

    def gather(self, message):
        return self._pending("gather", message[None])

    def all_reduce(self, tensor):
        return self._pending("all_reduce", tensor)

    def _pending(self, name, result):
        begun = self._streams.note(name)

        def wait():
            self._streams.note(f"{name} is over", [begun])
            return result

        return SimpleNamespace(wait=wait)


def gtc_on(streams, model, threshold=0.01):
    gtc = GtcConfig(threshold=threshold, grad_scale="mean", density=0.1 if threshold else 0.0)
    strategy = Gtc(ParallelConfig("gtc", gtc=gtc), Alone(streams))
    strategy.make_exchange = lambda: FixedMessages(strategy, streams, max_bytes=64)
    strategy.start(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return strategy


@pytest.mark.parametrize("threshold", [0.01, 0.0])
def test_gtc_encodes_during_the_backward_pass_without_host_reads(threshold):
    streams = FakeStreams()
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    strategy = gtc_on(streams, model, threshold)
    inputs = torch.randn(6, 4)
    for _ in range(4):
        streams.log.clear()
        loss = model(inputs).square().sum()
        with streams.tracing():
            strategy.backward(loss, torch.tensor(6.0))
    names = [entry.name for entry in streams.log]
    assert not READ_BY_THE_HOST & set(names)
    kind = "gather" if threshold else "all_reduce"
    exchanges = [e for e in streams.named(kind) if e.stream == "side 1"]
    assert len(exchanges) > 2  # a bucket each
    backward = [e for e in streams.named("mm") if e.stream == "training"]  # of the three layers
    first = exchanges[0]
    assert any(first.number < entry.number for entry in backward)  # begun before the pass is over
    assert not any(comes_after(entry, first) for entry in backward)  # which waits for none
    assert comes_after(streams.named(f"{kind} is over")[-1], first)
    # The one wait of the host is for numbers of two steps before.
    assert len(streams.named("the host waits")) == (1 if threshold else 0)


def test_gtc_keeps_unsent_gradients_of_every_bucket():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    strategy = gtc_on(FakeStreams(), model, threshold=1.0)
    inputs, whole = torch.randn(6, 4), 0.0
    sent = torch.zeros(60)
    for _ in range(3):
        model.zero_grad(set_to_none=True)
        (model(inputs).square().sum() / 6).backward()
        whole = whole + strategy.flat.gradients()
        model.zero_grad(set_to_none=True)
        strategy.backward(model(inputs).square().sum(), torch.tensor(6.0))
        sent += strategy.flat.gradients()
    residual = strategy.rank_state_dict()["residual"]
    assert torch.allclose(sent + residual, whole, atol=1e-5)
    assert 0 < (sent != 0).float().mean() < 1
    strategy.load_state_dict(strategy.state_dict(), [{"residual": torch.arange(60.0)}])
    assert strategy.rank_state_dict()["residual"].tolist() == list(range(60))
    strategy.load_state_dict(strategy.state_dict(), [{"residual": residual}])
    assert torch.equal(strategy.rank_state_dict()["residual"], residual)
