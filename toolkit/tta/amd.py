"""AMD's GPUs through the files of Linux's driver `amdgpu`, which need no package."""

import os
from pathlib import Path

from toolkit.tta.nvml import Device

CARDS = Path("/sys/class/drm")
VENDOR = "0x1002"
GENERATIONS = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}
"""Gigatransfers per second of a lane -> generation of PCIe."""
VISIBLE = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


class AmdDevices:
    """AMD's GPUs of this machine that ROCm would use; none where there is no such driver.

    Args:
      cards: the folder in which the driver has a link per card.
    """

    def __init__(self, cards: Path = CARDS) -> None:
        found = [path / "device" for path in cards.glob("card*") if path.name[4:].isdigit()]
        found = [path for path in found if _read(path / "vendor") == VENDOR]
        found = [path for path in found if _read(path / "mem_info_vram_total").isdigit()]
        self._folders = _visible(sorted(found, key=lambda path: path.resolve().name))

    def describe(self) -> list[Device]:
        """Return a description of each device; the driver knows few names, else it is a number."""
        return [
            Device(
                _read(folder / "product_name") or f"AMD GPU {_read(folder / 'device')}",
                round(int(_read(folder / "mem_info_vram_total")) / 2**30, 1),
                _link(folder),
            )
            for folder in self._folders
        ]

    def utilisation(self) -> tuple[float, ...]:
        """Return the share (0 to 1) that each device is busy; those that do not tell are left out.

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
    speed, width = _read(folder / "max_link_speed").split(" ")[0], _read(folder / "max_link_width")
    generation = GENERATIONS.get(speed)
    return f"PCIe {generation} x{width}" if generation and width.isdigit() else ""


def _visible(folders: list[Path]) -> list[Path]:
    """Return the devices whose numbers the environment names, or all."""
    named = next((os.environ[name] for name in VISIBLE if name in os.environ), None)
    if named is None:
        return folders
    numbers = [part.strip() for part in named.split(",")]
    if not all(number.isdigit() for number in numbers if number):
        return folders  # named by UUID, which the driver's files do not have
    return [folders[int(n)] for n in numbers if n and int(n) < len(folders)]
