"""NVIDIA devices through NVML, where the package `nvidia-ml-py` and a driver are there."""

import os
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Device:
    """What a device is."""

    name: str
    memory_gib: float
    link: str
    """How it is connected, such as `PCIe 3 x16`: the most that device and board allow."""


class Devices:
    """The devices that CUDA would use here; none where NVML is not to be had."""

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
        """Return what each device is."""
        return [
            Device(
                name=_text(self._nvml.nvmlDeviceGetName(handle)),
                memory_gib=round(self._nvml.nvmlDeviceGetMemoryInfo(handle).total / 2**30, 1),
                link=self._link(handle),
            )
            for handle in self._handles
        ]

    def utilisation(self) -> tuple[float, ...]:
        """Return the share (0 to 1) of the last moments in which each device computed (A28).

        The moments are NVML's own, 1/6 to 1 s; it is what nvidia-smi prints as utilization.gpu.
        A device that does not tell, such as a part of a divided one, is left out.
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
        if name.startswith("-"):  # CUDA too ignores what stands behind an invalid number
            break
        get = nvml.nvmlDeviceGetHandleByIndex if name.isdigit() else nvml.nvmlDeviceGetHandleByUUID
        handles.append(get(int(name) if name.isdigit() else name))
    return handles


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name
