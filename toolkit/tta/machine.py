"""The machine of a training run: processors, storage, devices (A28, A30), and its price (A29)."""

import difflib
import os
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from toolkit.config.fields import NonNegative, Settings, from_plain
from toolkit.config.settings import read_yaml
from toolkit.environment import git_commit, machine, versions
from toolkit.errors import ToolkitError
from toolkit.storage.reading import reading, validated


@dataclass(frozen=True)
class Device:
    """Description of a device."""

    name: str
    memory_gib: float
    link: str
    """Connection to the host, such as `PCIe 3 x16`: the best that device and board both support."""


MISSING = "the package nvidia-ml-py is missing: `pip install nvidia-ml-py`"


def package_is_missing() -> bool:
    """Return whether the package is not installed."""
    try:
        import pynvml  # noqa: F401
    except ImportError:
        return True
    return False


class Devices:
    """The devices that CUDA would use here; none where NVML is not available."""

    def __init__(self) -> None:
        self._nvml, self._handles = None, []
        try:
            import pynvml
        except ImportError:
            return
        try:
            pynvml.nvmlInit()
            self._nvml, self._handles = pynvml, _handles(pynvml)
        except pynvml.NVMLError:  # no driver, or no such device
            return

    def describe(self) -> list[Device]:
        """Return a description of each device."""
        return [
            Device(
                name=_text(self._nvml.nvmlDeviceGetName(handle)),
                memory_gib=round(self._nvml.nvmlDeviceGetMemoryInfo(handle).total / 2**30, 1),
                link=self._link(handle),
            )
            for handle in self._handles
        ]

    def utilisation(self) -> tuple[float, ...]:
        """Return the share (0 to 1) of the last sampling period that each device was busy (A28).

        The period is NVML's own, 1/6 to 1 s; nvidia-smi prints the same as utilization.gpu. A
        device that does not report it, such as a MIG instance, is left out.
        """
        shares = map(self._share, self._handles)
        return tuple(share for share in shares if share is not None)

    def _share(self, handle: Any) -> float | None:
        """Return the utilisation of a device, 0 to 1; None if it is not reported."""
        try:
            return self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
        except self._nvml.NVMLError:
            return None

    def _link(self, handle: Any) -> str:
        """Return the connection of a device to the host; empty if it is not reported."""
        try:
            generation = self._nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)
            width = self._nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)
        except self._nvml.NVMLError:
            return ""
        return f"PCIe {generation} x{width}"


def _handles(nvml: Any) -> list[Any]:
    """Return the handles of the devices in CUDA_VISIBLE_DEVICES, or of all if it is not set."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    handles = []
    for name in filter(None, map(str.strip, visible.split(","))):
        if name.startswith("-"):  # like CUDA, ignore everything after an invalid number
            break
        get = nvml.nvmlDeviceGetHandleByIndex if name.isdigit() else nvml.nvmlDeviceGetHandleByUUID
        handles.append(get(int(name) if name.isdigit() else name))
    return handles


def _text(name: str | bytes) -> str:
    """Return a name as text; older versions of NVML's bindings return bytes."""
    return name.decode() if isinstance(name, bytes) else name


CARDS = Path("/sys/class/drm")
VENDOR = "0x1002"
GENERATIONS = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}
"""Gigatransfers per second of a lane -> generation of PCIe."""
VISIBLE = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


class AmdDevices:
    """The AMD GPUs of this machine that ROCm would use; none without the driver amdgpu.

    Args:
      cards: the folder in which the driver has a link per card.
    """

    def __init__(self, cards: Path = CARDS) -> None:
        # card0 is a card, card0-DP-1 one of its connectors; only AMD's driver has the VRAM file.
        folders = [path / "device" for path in cards.glob("card*") if path.name[4:].isdigit()]
        folders = [path for path in folders if _read(path / "vendor") == VENDOR]
        folders = [path for path in folders if _read(path / "mem_info_vram_total").isdigit()]
        self._folders = _visible(sorted(folders, key=lambda path: path.resolve().name))

    def describe(self) -> list[Device]:
        """Describe each device; one whose name the driver does not know has its number instead."""
        return [
            Device(
                _read(folder / "product_name") or f"AMD GPU {_read(folder / 'device')}",
                round(int(_read(folder / "mem_info_vram_total")) / 2**30, 1),
                _link(folder),
            )
            for folder in self._folders
        ]

    def utilisation(self) -> tuple[float, ...]:
        """Return the share (0 to 1) of time that each device is busy, if its driver reports it.

        It is the driver's `gpu_busy_percent`, which `rocm-smi` prints as well.
        """
        busy = [_read(folder / "gpu_busy_percent") for folder in self._folders]
        return tuple(int(percent) / 100 for percent in busy if percent.isdigit())


def _read(path: Path) -> str:
    """Return a file's text, empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _link(folder: Path) -> str:
    """Return the connection of a device to the host from its driver's files; empty: unknown."""
    speed, width = _read(folder / "max_link_speed").split(" ")[0], _read(folder / "max_link_width")
    generation = GENERATIONS.get(speed)
    return f"PCIe {generation} x{width}" if generation and width.isdigit() else ""


def _visible(folders: list[Path]) -> list[Path]:
    """Return the devices whose numbers the environment names, or all if it names none."""
    named = next((os.environ[name] for name in VISIBLE if name in os.environ), None)
    if named is None:
        return folders
    numbers = [part.strip() for part in named.split(",")]
    if not all(number.isdigit() for number in numbers if number):
        return folders  # named by UUID, which the driver's files do not have
    return [folders[int(n)] for n in numbers if n and int(n) < len(folders)]


APPLE = "the utilisation of Apple's GPUs is not measured"
NO_DRIVER = "neither NVML nor the files of the driver amdgpu list the devices"


class Accelerators:
    """The devices that a training run here would use.

    NVML lists NVIDIA's devices and the driver's files list AMD's, both with utilisation. Other
    devices are known only to torch, if it is loaded, without utilisation.
    """

    def __init__(self) -> None:
        self._nvidia = Devices()
        # AMD's processors have GPUs too, which only torch's build for ROCm would use.
        self._amd = AmdDevices() if "torch" not in sys.modules or _is_rocm() else None

    def describe(self) -> list[Device]:
        """Return a description of each device."""
        if devices := self._nvidia.describe():
            return devices
        files, torch_devices = self._amd.describe() if self._amd else [], _known_to_torch()
        if len(files) != len(torch_devices):
            return torch_devices or files
        # torch has the names of AMD's devices, the driver's files have their links.
        return [
            replace(d, link=f.link or d.link) for d, f in zip(torch_devices, files, strict=True)
        ]

    def utilisation(self) -> tuple[float, ...]:
        """Return the share (0 to 1) that each device was busy; empty where it is not measured."""
        return self._nvidia.utilisation() or (self._amd.utilisation() if self._amd else ())

    def unmeasured(self) -> str | None:
        """Say why the devices' utilisation is not measured; None if it is, or without devices.

        Only the devices that torch can use count, and none if torch is not loaded.
        """
        torch_devices = _known_to_torch()
        if not torch_devices or self.utilisation():
            return None
        if _has_mps():
            return APPLE
        return MISSING if package_is_missing() and not _is_rocm() else NO_DRIVER


def _known_to_torch() -> list[Device]:
    """Return the devices that torch knows, if it is loaded."""
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    if torch.cuda.is_available():  # for AMD's GPUs too, in torch's build for ROCm
        properties = [torch.cuda.get_device_properties(n) for n in range(torch.cuda.device_count())]
        return [Device(d.name, round(d.total_memory / 2**30, 1), link="") for d in properties]
    if _has_mps():
        return [Device(_apple_name(), round(_mps_bytes() / 2**30, 1), "shared memory")]
    return []


def _is_rocm() -> bool:
    """Return whether torch, if it is loaded, was built for ROCm."""
    torch = sys.modules.get("torch")
    return bool(getattr(getattr(torch, "version", None), "hip", None))


def _has_mps() -> bool:
    """Return whether torch, if it is loaded, can use Apple's GPU."""
    torch = sys.modules.get("torch")
    mps = getattr(getattr(torch, "backends", None), "mps", None)
    return mps is not None and mps.is_available()


def _mps_bytes() -> int:
    """Return how many bytes torch recommends to use on Apple's GPU; 0 if it does not say."""
    torch = sys.modules["torch"]
    recommended = getattr(getattr(torch, "mps", None), "recommended_max_memory", None)
    return recommended() if recommended is not None else 0


def _apple_name() -> str:
    """Return the chip's name, such as `Apple M2 Pro`, whose GPU has no other."""
    command = ["sysctl", "-n", "machdep.cpu.brand_string"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return f"Apple GPU ({platform.machine()})"
    return f"{done.stdout.strip()} GPU"


SHARED = ("nfs", "cifs", "smb", "lustre", "gpfs", "ceph", "beegfs", "fuse.s3", "fuse.sshfs")
"""Prefixes of the types of network file systems."""


class PlatformError(ToolkitError):
    """A platform file cannot be read."""


@dataclass(frozen=True)
class Price(Settings):
    """The price of a platform, as the user entered it in a file."""

    name: str
    """The platform's name on the page."""
    total: NonNegative | None = None
    """Price of the machine without storage (A29)."""
    devices: NonNegative | None = None
    """Price of its accelerators alone."""
    processors: NonNegative | None = None
    """Price of its processors alone."""
    per_hour: NonNegative | None = None
    """Rent of the machine per hour, for the cost of training by DAWNBench's rule."""
    currency: str = "USD"
    """Currency of all prices."""
    as_of: str = ""
    """Date and place of the prices, such as `October 2019`."""
    note: str = ""
    """Further details, such as the main board or the connections of devices."""

    def check(self) -> None:
        """Refuse a platform without a name."""
        if not self.name:
            raise ValueError("a platform needs a name")


def read_prices(path: Path) -> list[Price]:
    """Read a platform file: YAML or JSON, the fields of `Price` once or in a list.

    Raises:
      PlatformError: the file is not valid; the message names the file and the key.
    """
    with reading(path, PlatformError, "expected `name: ...` and prices, once or in a list"):
        entries = read_yaml(path)
        entries = validated(entries if isinstance(entries, list) else [entries], [{str: Any}])
    field_names = [field.name for field in fields(Price)]
    prices = []
    for entry in entries:
        for key in entry:
            if key not in field_names:
                near = difflib.get_close_matches(str(key), field_names, n=1)
                hint = (
                    f"did you mean `{near[0]}`?"
                    if near
                    else f"valid keys: {', '.join(field_names)}"
                )
                raise PlatformError(f"{path}: unknown key `{key}`; {hint}")
        try:
            # YAML turns a date into an object: `as_of` is text.
            prices.append(from_plain(Price, {**entry, "as_of": str(entry.get("as_of", ""))}))
        except ValueError as error:
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
    """Describe the processors: sockets, physical cores and highest clock rate in GHz."""
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
    """Return the name of the operating system."""
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
    # The kernel's description of the disk, by the device number of the folder or of its parent.
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    device = os.stat(existing).st_dev
    block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    if block.name.startswith(("vd", "xvd")):  # virtual disks always report themselves as rotating
        return f"{kind} on a virtual disk"
    for place in (block, block.parent):  # a partition has no queue of its own
        try:
            rotates = (place / "queue" / "rotational").read_text().strip() == "1"
        except OSError:
            continue
        return f"{kind} on {'a rotating disk' if rotates else 'SSD'}"
    return kind


def format_processors(machine: dict[str, Any]) -> str:
    """Format the processors of `describe` in one line."""
    if not machine.get("cpu"):
        return ""
    sockets = machine.get("sockets") or 1
    many = f"{sockets} x " if sockets > 1 else ""
    cores = f", {machine['cores']} cores" if machine.get("cores") else ""
    usable = f" ({machine['cpus']} CPUs usable)" if machine.get("cpus") else ""
    ghz = f", {machine['ghz']} GHz" if machine.get("ghz") else ""
    return f"{many}{machine['cpu']}{cores}{usable}{ghz}"


def format_devices(machine: dict[str, Any]) -> str:
    """Format the devices of `describe` in one line, equal devices together."""
    links_by_model: dict[tuple[str, float], list[str]] = {}
    for device in machine.get("devices") or []:
        links_by_model.setdefault((device["name"], device["memory_gib"]), []).append(device["link"])
    return "; ".join(
        f"{len(links)} x {name}, {memory:g} GiB"
        + (f" ({', '.join(dict.fromkeys(links))})" if any(links) else "")
        for (name, memory), links in links_by_model.items()
    )
