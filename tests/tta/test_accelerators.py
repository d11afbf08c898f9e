"""Devices of every vendor, from a fake NVML, fake driver files and a fake torch."""

import sys
from types import SimpleNamespace

import pytest

from toolkit.tta import machine
from toolkit.tta.machine import Accelerators, AmdDevices, Device, describe


@pytest.fixture(autouse=True)
def nothing_else(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(AmdDevices.__init__, "__defaults__", (tmp_path / "drm",))
    for name in machine.VISIBLE:
        monkeypatch.delenv(name, raising=False)


def false_torch(monkeypatch, names=(), hip=None, mps=False):
    cuda = SimpleNamespace(
        is_available=lambda: bool(names),
        device_count=lambda: len(names),
        get_device_properties=lambda n: SimpleNamespace(name=names[n], total_memory=8 << 30),
    )
    torch = SimpleNamespace(
        cuda=cuda,
        version=SimpleNamespace(hip=hip),
        backends=SimpleNamespace(mps=SimpleNamespace(is_available=lambda: mps)),
        mps=SimpleNamespace(recommended_max_memory=lambda: 12 << 30),
        get_num_threads=lambda: 1,
    )
    monkeypatch.setitem(sys.modules, "torch", torch)


def card(folder, number, address, **files):
    """A card as the driver shows it: drm/card0/device is a link to the PCI device."""
    device = folder / "pci" / address
    device.mkdir(parents=True)
    for name, text in files.items():
        (device / name).write_text(f"{text}\n")
    card_folder = folder / "drm" / f"card{number}"
    card_folder.mkdir(parents=True)
    (card_folder / "device").symlink_to(device)
    (folder / "drm" / f"card{number}-DP-1").mkdir()


@pytest.fixture
def two_cards(tmp_path):
    """Two cards in reverse bus order; a third is of another vendor."""
    of_both = {"vendor": "0x1002", "mem_info_vram_total": 16 << 30, "max_link_width": 16}
    card(tmp_path, 0, "0000:43:00.0", **of_both, device="0x740f", max_link_speed="16.0 GT/s PCIe")
    card(
        tmp_path, 1, "0000:03:00.0", **of_both, device="0x73bf",
        product_name="Radeon RX", gpu_busy_percent=37, max_link_speed="odd",
    )  # fmt: skip
    card(tmp_path, 2, "0000:05:00.0", vendor="0x8086", device="0x1", mem_info_vram_total=1 << 30)


@pytest.mark.usefixtures("two_cards")
def test_the_driver_of_amd_describes_its_devices_in_the_order_of_the_bus(tmp_path, monkeypatch):
    devices = AmdDevices(tmp_path / "drm")
    assert devices.describe() == [
        Device("Radeon RX", 16.0, ""),
        Device("AMD GPU 0x740f", 16.0, "PCIe 4 x16"),
    ]
    assert devices.utilisation() == (0.37,)
    for visible, names in (
        ("1", ["AMD GPU 0x740f"]),
        ("", []),
        ("1,0,9", ["AMD GPU 0x740f", "Radeon RX"]),
    ):
        monkeypatch.setenv("HIP_VISIBLE_DEVICES", visible)
        assert [d.name for d in AmdDevices(tmp_path / "drm").describe()] == names
    assert AmdDevices(tmp_path / "nowhere").describe() == []


@pytest.mark.usefixtures("two_cards")
def test_torch_for_rocm_knows_the_names_and_the_driver_the_links(monkeypatch):
    false_torch(monkeypatch, ["Radeon RX 6900", "Instinct MI210"], hip="6.2")
    accelerators = Accelerators()
    assert [(d.name, d.link) for d in accelerators.describe()] == [
        ("Radeon RX 6900", ""),
        ("Instinct MI210", "PCIe 4 x16"),
    ]
    assert accelerators.utilisation() == (0.37,)
    assert accelerators.unmeasured() is None


@pytest.mark.usefixtures("two_cards")
def test_a_torch_that_cannot_use_them_does_not_count_amds_devices(monkeypatch):
    false_torch(monkeypatch)
    assert Accelerators().describe() == []
    assert Accelerators().utilisation() == ()
    assert Accelerators().unmeasured() is None


def test_torch_describes_devices_without_nvml(monkeypatch):
    false_torch(monkeypatch, ["GPU 0", "GPU 1"])
    description = describe()
    assert description["devices"] == [
        {"name": f"GPU {n}", "memory_gib": 8.0, "link": ""} for n in range(2)
    ]
    assert "pip install nvidia-ml-py" in description["unmeasured"]
    false_torch(monkeypatch, ["GPU 0"], hip="6.2")
    assert describe()["unmeasured"] == machine.NO_DRIVER
    false_torch(monkeypatch)
    assert describe()["unmeasured"] is None


def test_apples_device_is_named_after_its_chip(monkeypatch):
    false_torch(monkeypatch, mps=True)
    completed = SimpleNamespace(stdout="Apple M2 Pro\n")
    monkeypatch.setattr(machine.subprocess, "run", lambda command, **_: completed)
    accelerators = Accelerators()
    assert accelerators.describe() == [Device("Apple M2 Pro GPU", 12.0, "shared memory")]
    assert accelerators.unmeasured() == machine.APPLE

    def fail(command, **_):
        raise FileNotFoundError(command[0])

    monkeypatch.setattr(machine.subprocess, "run", fail)
    assert accelerators.describe()[0].name.startswith("Apple GPU")
