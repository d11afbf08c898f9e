"""The accelerators of this machine, of whatever make: NVIDIA's, AMD's, Apple's (A28, A30)."""

import platform
import subprocess
import sys
from dataclasses import replace

from toolkit.tta.amd import AmdDevices
from toolkit.tta.nvml import MISSING, Device, Devices, package_is_missing

APPLE = "the utilisation of Apple's GPUs is not measured"
NO_DRIVER = "neither NVML nor the files of the driver amdgpu know the devices"


class Accelerators:
    """The devices that a training here would use.

    NVIDIA's are known by NVML and AMD's by their driver's files, with their utilisation; others by
    torch alone, if it is loaded, without.
    """

    def __init__(self) -> None:
        self._nvidia = Devices()
        # AMD's processors have GPUs too, which only torch's build for ROCm would use.
        self._amd = AmdDevices() if "torch" not in sys.modules or _is_rocm() else None

    def describe(self) -> list[Device]:
        """Return a description of each device."""
        if found := self._nvidia.describe():
            return found
        files, known = self._amd.describe() if self._amd else [], _known_to_torch()
        if len(files) != len(known):
            return known or files
        # torch knows AMD's names, the driver's files the links.
        return [replace(d, link=f.link or d.link) for d, f in zip(known, files, strict=True)]

    def utilisation(self) -> tuple[float, ...]:
        """Return the share (0 to 1) that each device was busy; empty where it is not measured."""
        return self._nvidia.utilisation() or (self._amd.utilisation() if self._amd else ())

    def unmeasured(self) -> str | None:
        """Say why the utilisation of the devices is not measured; None: it is, or there are none.

        Only devices that torch, if it is loaded, can use count.
        """
        known = _known_to_torch()
        if not known or self.utilisation():
            return None
        if _has_mps():
            return APPLE
        return MISSING if package_is_missing() and not _is_rocm() else NO_DRIVER


def _known_to_torch() -> list[Device]:
    """Return the devices that torch knows, if it is loaded."""
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    if torch.cuda.is_available():  # of AMD too, in torch's build for ROCm
        found = [torch.cuda.get_device_properties(n) for n in range(torch.cuda.device_count())]
        return [Device(d.name, round(d.total_memory / 2**30, 1), link="") for d in found]
    if _has_mps():
        return [Device(_apple_name(), round(_mps_bytes() / 2**30, 1), "shared memory")]
    return []


def _is_rocm() -> bool:
    torch = sys.modules.get("torch")
    return bool(getattr(getattr(torch, "version", None), "hip", None))


def _has_mps() -> bool:
    torch = sys.modules.get("torch")
    mps = getattr(getattr(torch, "backends", None), "mps", None)
    return mps is not None and mps.is_available()


def _mps_bytes() -> int:
    """Return the memory that torch recommends to use on Apple's GPU; 0 if it does not say."""
    torch = sys.modules["torch"]
    recommended = getattr(getattr(torch, "mps", None), "recommended_max_memory", None)
    return recommended() if recommended is not None else 0


def _apple_name() -> str:
    """Return the chip's name, such as `Apple M2 Pro`, whose GPU has no other."""
    command = ["sysctl", "-n", "machdep.cpu.brand_string"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return f"Apple GPU ({platform.machine()})"
    return f"{found.stdout.strip()} GPU"
