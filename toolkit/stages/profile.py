"""Where the time of a stage goes: `profiles/NN.svg`, a flame graph, and `profiles/NN.folded`."""

from collections.abc import Iterator
from contextlib import contextmanager

from toolkit.processes.flame_graph import flame_graph
from toolkit.processes.sampler import Stacks, folded, sampled
from toolkit.stages.directory import RunDirectory


@contextmanager
def profiled(directory: RunDirectory, stage: int, title: str, wanted: bool) -> Iterator[None]:
    """Sample a stage in a `with` block, and write its profile however the block ends.

    Args:
      directory: the run directory.
      stage: the stage's number.
      title: its title.
      wanted: whether to do so at all.
    """
    if not wanted:
        yield
        return
    stacks: Stacks = {}
    try:
        with sampled() as stacks:
            yield
    finally:
        directory.write(directory.profile(stage, ".folded"), folded(stacks))
        directory.write(directory.profile(stage, ".svg"), flame_graph(stacks, f"{stage} {title}"))
