"""Where a process id means something: on one host, until it is booted again, in one container."""

import os
import socket


def pid_space() -> str:
    """Name the scope in which process ids are unique: this boot of the host, and the container."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip() + os.readlink("/proc/self/ns/pid")
    except OSError:
        return f"{socket.gethostname()} {os.getpid()}"  # equal to no other process's
