"""NVIDIA's GPUs through NVML, where the package `nvidia-ml-py` and a driver are installed."""

import os
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Device:
    """Description of a device."""

    name: str
    memory_gib: float
    link: str
    """Connection to the host, such as `PCIe 3 x16`: the maximum of device and board."""


MISSING = "the package nvidia-ml-py is missing: `pip install nvidia-ml-py`"


def package_is_missing() -> bool:
    """Whether the package is not installed."""
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
        try:
            return self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
        except self._nvml.NVMLError:
            return None

    def _link(self, handle: Any) -> str:
        try:
            generation = self._nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)
            width = self._nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)
        except self._nvml.NVMLError:
            return ""
        return f"PCIe {generation} x{width}"


def _handles(nvml: Any) -> list[Any]:
    """Return the handles of the devices in CUDA_VISIBLE_DEVICES, or of all."""
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
    return name.decode() if isinstance(name, bytes) else name
