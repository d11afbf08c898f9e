"""A platform: a description of the machine (A30) and its price, which the user enters (A29)."""

import difflib
import os
import platform
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from toolkit.config.plain_yaml import read_yaml
from toolkit.environment import git_commit, machine, versions
from toolkit.errors import ToolkitError
from toolkit.storage.reading import reading, validated
from toolkit.tta.accelerators import Accelerators

SHARED = ("nfs", "cifs", "smb", "lustre", "gpfs", "ceph", "beegfs", "fuse.s3", "fuse.sshfs")
"""Prefixes of the types of network file systems."""


class PlatformError(ToolkitError):
    """A platform file cannot be read."""


@dataclass(frozen=True)
class Price:
    """The price of a platform, as the user has entered it in a file."""

    name: str
    """The platform's name on the page."""
    total: float | None = None
    """Price of the machine without storage (A29)."""
    devices: float | None = None
    """Price of its accelerators alone."""
    processors: float | None = None
    """Price of its processors alone."""
    per_hour: float | None = None
    """Rent of the machine per hour, for the cost of training by DAWNBench's rule."""
    currency: str = "USD"
    """Currency of all prices."""
    as_of: str = ""
    """Date and place of the prices, such as `October 2019`."""
    note: str = ""
    """Further details, such as the main board or the connections of devices."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError("a platform needs a name")
        for key in ("total", "devices", "processors", "per_hour"):
            value = getattr(self, key)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (number and value >= 0):
                raise ValueError(f"{key} is {value!r}, not a price")


def read_prices(path: Path) -> list[Price]:
    """Read a platform file: YAML or JSON, the fields of `Price` once or in a list.

    Raises:
      PlatformError: naming the file and the key.
    """
    with reading(path, PlatformError, "expected `name: ...` and prices, once or in a list"):
        plain = read_yaml(path)
        entries = validated(plain if isinstance(plain, list) else [plain], [{str: Any}])
    known = [field.name for field in fields(Price)]
    prices = []
    for entry in entries:
        for key in entry:
            if key not in known:
                near = difflib.get_close_matches(str(key), known, n=1)
                hint = f"did you mean `{near[0]}`?" if near else f"known are {', '.join(known)}"
                raise PlatformError(f"{path}: unknown key `{key}`; {hint}")
        try:
            prices.append(Price(**{**entry, "as_of": str(entry.get("as_of", ""))}))
        except (TypeError, ValueError) as error:
            raise PlatformError(f"{path}: {error}") from error
    return prices


def describe(folder: Path | None = None) -> dict[str, Any]:
    """Describe this machine for the first event of the run log (A30), as plain data.

    Args:
      folder: the training's folder, whose storage is described.

    Returns:
      The keys of `toolkit.environment.machine`, and `sockets`, `cores` (physical ones), `ghz`
      (maximum of the fastest processor), `os`, `storage`, `devices` (each a `Device`),
      `unmeasured` (why their utilisation is not measured), `versions` and `commit`. Unknown values
      are None. Host and user are not named.
    """
    accelerators = Accelerators()
    return {
        **machine(),
        **_processors(),
        "os": _system(),
        "storage": None if folder is None else _storage(folder),
        "devices": [asdict(device) for device in accelerators.describe()],
        "unmeasured": accelerators.unmeasured(),
        "versions": versions(),
        "commit": git_commit(),
    }


def _processors() -> dict[str, Any]:
    import psutil

    frequency = psutil.cpu_freq()
    ghz = (frequency.max or frequency.current) / 1000 if frequency else 0.0
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    sockets = {line.partition(":")[2] for line in text.splitlines() if "physical id" in line}
    return {
        "sockets": len(sockets) or None,
        "cores": psutil.cpu_count(logical=False),
        "ghz": round(ghz, 1) or None,
    }


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return f"{platform.system()} {platform.release()}"


def _storage(folder: Path) -> str | None:
    """Return file system and disk of a folder, such as `ext4 on SSD`."""
    import psutil

    folder = Path(folder).resolve()
    mounts = [
        partition
        for partition in psutil.disk_partitions(all=True)
        if folder.is_relative_to(partition.mountpoint)
    ]
    if not mounts:
        return None
    kind = max(mounts, key=lambda partition: len(partition.mountpoint)).fstype
    if kind.startswith(SHARED):
        return f"{kind}, shared"
    there = next(place for place in (folder, *folder.parents) if place.exists())
    device = os.stat(there).st_dev
    block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    if block.name.startswith(("vd", "xvd")):  # reports itself as rotating, whatever the real disk
        return f"{kind} on a virtual disk"
    for place in (block, block.parent):  # a partition has no queue of its own
        try:
            rotates = (place / "queue" / "rotational").read_text().strip() == "1"
        except OSError:
            continue
        return f"{kind} on {'a rotating disk' if rotates else 'SSD'}"
    return kind
