"""Work sharing: which node takes which steps of an epoch, each at its own pace.

A node is one worker, or several that keep in step with each other. Its part of an epoch is a range
of steps, which it takes from the front. A node without steps of its own takes some over from the
back of the part of which most is left, the fewer the less is left, so that all nodes come to the
end at almost the same time, however fast each is: none waits longer than for one step of another.

Counters that all nodes can add to are the only common state. Training uses the processes'
key-value store, the simulator a dictionary; what is decided here is the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

_BACK = 1 << 32  # a counter holds the steps taken from the back in its upper half

Add = Callable[[str, int], int]
"""Adds to the counter of a name, which begins at 0, in one go; returns its new value."""


@dataclass(frozen=True)
class Steps:
    """Consecutive steps of the part of one node."""

    owner: int
    """The node whose part they are of."""
    first: int
    end: int
    """The step after the last one."""

    def __len__(self) -> int:
        return max(0, self.end - self.first)


class Shares:
    """The steps of one epoch as one node sees them.

    Args:
      add: the shared counters; their names are the nodes' numbers.
      node: this node.
      parts: the part of every node; the same on all nodes.
      taken: steps that this node has taken over earlier, but not done; none are left out.
    """

    def __init__(
        self, add: Add, node: int, parts: Sequence[Steps], taken: Steps | None = None
    ) -> None:
        self._add, self._node, self._parts = add, node, parts
        self._taken = Steps(node, 0, 0) if taken is None else taken
        self._has_own = len(parts[node]) > 0

    def take(self) -> Steps | None:
        """Take a step; None when there is none left that nobody has taken.

        Returns:
          The step, as the first of those that follow it unless other nodes take them over.
        """
        if self._has_own and not self._taken:
            left = self._left(self._add(str(self._node), 1))
            if left.first <= left.end:  # the step before is now this node's
                return Steps(self._node, left.first - 1, left.end)
            self._has_own = False
        if not self._taken:
            self._take_over()
        if not self._taken:
            return None
        found = self._taken
        self._taken = Steps(found.owner, found.first + 1, found.end)
        return found

    def remaining(self) -> tuple[Steps, Steps]:
        """Return the steps of this node's part, and those taken over, that nobody has begun."""
        own = self._left(self._add(str(self._node), 0))
        return Steps(self._node, min(own.first, own.end), own.end), self._taken

    def _take_over(self) -> None:
        """Take over the last steps of another part, if there are any."""
        nodes = len(self._parts)
        others = [other for other in range(nodes) if other != self._node]
        while others:
            left = {other: len(self._left(self._add(str(other), 0), other)) for other in others}
            other = max(others, key=lambda other: (left[other], (self._node - other) % nodes))
            if not left[other]:
                return
            number = max(1, left[other] // (2 * nodes))
            after = self._left(self._add(str(other), number * _BACK), other)
            found = Steps(other, max(after.first, after.end), after.end + number)
            if found:
                self._taken = found
                return

    def _left(self, counter: int, node: int | None = None) -> Steps:
        """Return what a counter leaves of a part; `first` is beyond `end` after vain attempts."""
        part = self._parts[self._node if node is None else node]
        back, front = divmod(counter, _BACK)
        return Steps(part.owner, part.first + front, part.end - back)
