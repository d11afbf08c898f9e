"""Objects of an attempt, named after their content, so that two attempts never share a name.

A partition may be attempted twice at the same time, and on processors of different kinds the
results may differ in their last bits. An object that a step writes as `<out>/<folder>/<name>` is
stored as `<out>/_objects/<folder>/<digest>/<name>`: what an attempt has written stays as it is, and
the partition's marker names the objects that belong together.
"""

from pathlib import Path

from toolkit.pipeline.objects import ObjectStore, StoreConfig

OBJECTS = "_objects"


class AttemptStore(ObjectStore):
    """The store of one attempt at a partition.

    Args:
      config: of the store.
      out: prefix of the step's output; what is written elsewhere keeps its name.
      scratch: the attempt's own folder, which may lie below `out`.
    """

    def __init__(self, config: StoreConfig, out: str, scratch: Path) -> None:
        super().__init__(config)
        self._out, self._scratch = f"{out}/", f"{scratch}/"

    def _name(self, path: str, digest: str) -> str:
        if not path.startswith(self._out) or path.startswith(self._scratch):
            return path
        folder, slash, name = path.removeprefix(self._out).rpartition("/")
        return f"{self._out}{OBJECTS}/{folder}{slash}{digest}/{name}"


def plain_name(path: str, out: str) -> str:
    """Return the name below `out` that the step has given to an object."""
    name = path.removeprefix(f"{out.rstrip('/')}/")
    if not name.startswith(f"{OBJECTS}/"):
        return name
    *folder, _digest, last = name.removeprefix(f"{OBJECTS}/").split("/")
    return "/".join((*folder, last))
