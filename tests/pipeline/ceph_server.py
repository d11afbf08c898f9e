"""Ceph on this machine, where its programs are installed: an S3 server that people run.

Debian: apt-get install --no-install-recommends ceph-mon ceph-osd radosgw
"""

import shutil
import signal
import socket
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path

PROGRAMS = ("monmaptool", "ceph-mon", "ceph-osd", "ceph", "radosgw", "radosgw-admin")
SECONDS = 90.0
"""Time that a program may take to start on a busy machine."""
# One monitor, one store in memory, no authentication within: the smallest cluster there is.
CONFIG = """\
[global]
fsid = {fsid}
mon host = 127.0.0.1:{monitor}
auth cluster required = none
auth service required = none
auth client required = none
run dir = {folder}/run
admin socket = {folder}/run/$name.$pid.asok
log file = {folder}/log/$name.log
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 4
osd pool default pgp num = 4
osd crush chooseleaf type = 0
osd class load list = *
mon allow pool size one = true
osd objectstore = memstore
memstore device bytes = 6442450944
enable experimental unrecoverable data corrupting features = memstore
mon data = {folder}/mon
osd data = {folder}/osd
mon data avail crit = 1
rgw dynamic resharding = false
"""


def installed() -> bool:
    """Whether all programs are there."""
    return all(shutil.which(program) for program in PROGRAMS)


class CephServer:
    """A cluster that starts at once and ends with `stop`.

    Args:
      folder: empty; its path must be short, since sockets lie in it.
      key, secret: of the one user.
    """

    def __init__(self, folder: Path, key: str, secret: str) -> None:
        self._folder, self._running = folder, []
        self.port, monitor = free_port(), free_port()
        for name in ("mon", "osd", "run", "log"):
            (folder / name).mkdir()
        self._config = folder / "ceph.conf"
        fsid = str(uuid.uuid4())
        self._config.write_text(CONFIG.format(fsid=fsid, monitor=monitor, folder=folder))
        try:
            address = f"[v1:127.0.0.1:{monitor}]"
            at = str(folder / "monmap")
            subprocess.run(
                ["monmaptool", "--create", "--addv", "a", address, "--fsid", fsid, at],
                check=True, capture_output=True,
            )  # fmt: skip
            self._run("ceph-mon", "-i", "a", "--mkfs", "--monmap", at)
            self._start("ceph-mon", "-i", "a", "--public-addr", "127.0.0.1")
            osd = str(uuid.uuid4())
            self._run("ceph", "osd", "new", osd)
            self._run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", osd)
            self._start("ceph-osd", "-i", "0")
            self._until(lambda: "1 up" in self._run("ceph", "osd", "stat"))
            named = ("--uid=tests", "--display-name=tests")
            self._run("radosgw-admin", "user", "create", *named,
                      f"--access-key={key}", f"--secret-key={secret}")  # fmt: skip
            self._start_gateway()
        except BaseException:
            self.stop()
            raise

    @property
    def gateway(self) -> subprocess.Popen:
        """The process that speaks S3; the others keep what it was sent."""
        return self._running[-1]

    def restart_gateway(self) -> None:
        """Start the gateway again, after it was killed."""
        self._running.pop().wait()
        self._start_gateway()

    def stop(self) -> None:
        """End all programs."""
        for process in reversed(self._running):
            process.send_signal(signal.SIGKILL)
            process.wait()

    def _start_gateway(self) -> None:
        frontend = f"--rgw-frontends=beast endpoint=127.0.0.1:{self.port}"
        self._start("radosgw", "-n", "client.rgw", frontend, "--no-mon-config")
        self._until(self._answers)

    def _command(self, program: str, *arguments: str) -> list[str]:
        return [program, "-c", str(self._config), *arguments]

    def _run(self, *command: str) -> str:
        process = subprocess.run(
            self._command(*command), capture_output=True, text=True, timeout=SECONDS, check=False
        )
        if process.returncode:
            raise RuntimeError(f"{command}: {process.stderr[-2000:]}")
        return process.stdout

    def _start(self, *command: str) -> None:
        log = (self._folder / "log" / f"{command[0]}.out").open("wb")
        self._running.append(
            subprocess.Popen([*self._command(*command), "-f"], stdout=log, stderr=log)
        )

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=5):
                return True
        except OSError:
            return False

    def _until(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + SECONDS
        while not done():
            ended = [(p.args[0], p.returncode) for p in self._running if p.poll() is not None]
            if ended or time.monotonic() > end:
                raise RuntimeError(f"Ceph has not started, ended: {ended}; see {self._folder}/log")
            time.sleep(0.5)


def free_port() -> int:
    """A port of this machine on which nobody listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
