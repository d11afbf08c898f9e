"""A machine's processors and devices in a line of text (A30)."""

from typing import Any


def processors(machine: dict[str, Any]) -> str:
    """Format the processors of `platform.describe` in one line."""
    if not machine.get("cpu"):
        return ""
    sockets = machine.get("sockets") or 1
    many = f"{sockets} x " if sockets > 1 else ""
    cores = f", {machine['cores']} cores" if machine.get("cores") else ""
    usable = f" ({machine['cpus']} CPUs usable)" if machine.get("cpus") else ""
    ghz = f", {machine['ghz']} GHz" if machine.get("ghz") else ""
    return f"{many}{machine['cpu']}{cores}{usable}{ghz}"


def devices(machine: dict[str, Any]) -> str:
    """Format the devices of `platform.describe` in one line, equal ones together."""
    found: dict[tuple[str, float], list[str]] = {}
    for device in machine.get("devices") or []:
        found.setdefault((device["name"], device["memory_gib"]), []).append(device["link"])
    return "; ".join(
        f"{len(links)} x {name}, {memory:g} GiB"
        + (f" ({', '.join(dict.fromkeys(links))})" if any(links) else "")
        for (name, memory), links in found.items()
    )
