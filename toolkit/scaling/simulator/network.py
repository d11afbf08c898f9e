"""Network model of the simulator: durations of messages within and between hosts."""

from collections.abc import Sequence
from dataclasses import dataclass

GIGABIT = 1e9 / 8  # bytes


@dataclass(frozen=True)
class Network:
    """Hosts with a network card each, and links between the workers of a host."""

    per_host: int = 16
    """Workers per host; 16 GPUs in the machines of Table I (C25), 8 in those of (B4)."""
    between: float = 25.0
    """Gbit/s of a host's network card, each way (C25); 100 in (B4)."""
    core: float = 0.0
    """Gbit/s of the core network that connects all hosts, where that is less than the sum of their
    cards; 0: no such limit."""
    inside: float = 300.0
    """Gbit/s of a worker to others of its host (C25)."""
    latency: float = 50e-6
    """Seconds of latency between hosts, for any size."""
    latency_inside: float = 10e-6
    """Seconds of latency within a host."""

    def __post_init__(self) -> None:
        for name in ("per_host", "between", "inside"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}, needs to be above 0")
        for name in ("core", "latency", "latency_inside"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}, needs to be 0 or more")

    def host(self, worker: int) -> int:
        """Return the index of a worker's host."""
        return worker // self.per_host

    def hosts(self, workers: int) -> int:
        """Return the number of hosts needed for the given number of workers."""
        return -(-workers // self.per_host)

    def all_reduce(self, workers: int, size: float) -> float:
        """Seconds of an all-reduce of `size` bytes: a ring in each host, then a ring of the hosts.

        A ring of n sends 2 (n - 1) / n of the bytes, in 2 (n - 1) messages one after the other.
        """
        inside, hosts = min(workers, self.per_host), self.hosts(workers)
        within = self._ring(inside, size, self.inside, self.latency_inside)
        across = self._ring(hosts, size, self.between, self.latency)
        return within + max(across, self._through_core(2 * (hosts - 1) * size))

    def broadcast(self, workers: int, size: float) -> float:
        """Seconds of a broadcast to `workers` of one host, pipelined along a chain as in nccl.

        A tree, as in gloo, takes longer.
        """
        if workers == 1:
            return 0.0
        return size / (self.inside * GIGABIT) + (workers - 1) * self.latency_inside

    def all_to_all(self, sizes: Sequence[float]) -> float:
        """Seconds until every worker has the messages of all others, of `sizes` bytes by worker.

        A message is sent to each receiver separately. A host's card carries its workers' messages
        to all other hosts and vice versa; the slower direction of the slowest host counts, and
        messages within a host overlap with that.
        """
        workers, total = len(sizes), sum(sizes)
        seconds = self._through_core(self.bytes_between(sizes))
        for host in range(self.hosts(workers)):
            first = host * self.per_host
            here = sizes[first : first + self.per_host]
            out = sum(here) * (workers - len(here))
            into = (total - sum(here)) * len(here)
            card = max(out, into) / (self.between * GIGABIT)
            link = (sum(here) - min(here)) / (self.inside * GIGABIT)
            delay = self.latency if workers > len(here) else self.latency_inside
            seconds = max(seconds, max(card, link) + delay)
        return seconds

    def bytes_between(self, sizes: Sequence[float]) -> float:
        """Bytes sent between hosts in `all_to_all`."""
        first = [host * self.per_host for host in range(self.hosts(len(sizes)))]
        hosts = [sizes[i : i + self.per_host] for i in first]
        return sum(sum(here) * (len(sizes) - len(here)) for here in hosts)

    def _through_core(self, size: float) -> float:
        return size / (self.core * GIGABIT) if self.core else 0.0

    def _ring(self, members: int, size: float, rate: float, latency: float) -> float:
        steps = 2 * (members - 1)
        return steps * (size / members / (rate * GIGABIT) + latency)


class NetworkCards:
    """The network cards of the hosts; each sends one message after the other.

    So do the processors of each host with the models that they copy and average.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._free: dict[tuple[int, str], float] = {}
        self.carried = 0.0
        """Bytes sent from one host to another."""

    def copy(self, now: float, worker: int, seconds: float) -> float:
        """Let the host of a worker copy and average for some seconds; return the end."""
        key = self._network.host(worker), "memory"
        self._free[key] = max(now, self._free.get(key, 0.0)) + seconds
        return self._free[key]

    def send(self, now: float, source: int, target: int, size: float) -> float:
        """Send `size` bytes from one worker to another at time `now`; return the arrival time."""
        network = self._network
        if network.host(source) == network.host(target):
            return now + network.latency_inside + size / (network.inside * GIGABIT)
        cards = (network.host(source), "out"), (network.host(target), "in")
        cards = (*cards, (0, "core")) if network.core else cards
        begin = max(now, *(self._free.get(card, 0.0) for card in cards))
        rate = min(network.between, network.core or network.between)
        end = begin + size / (rate * GIGABIT)
        for card in cards:
            self._free[card] = end
        self.carried += size
        return end + network.latency
