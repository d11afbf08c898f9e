"""Runs the shell commands of a Kaldi wav.scp, once each, into files, if the user allows it."""

import hashlib
import shutil
import subprocess
from pathlib import Path

from toolkit.corpus.pairing import Audio
from toolkit.storage.files import open_atomically

PIPE_CLOSED = 141
"""The status of a program that wrote on when the next one, such as `head`, had ended."""


class PipeRunner:
    """Runs commands and keeps their output as files in `folder`, so that each runs only once.

    A command that ends with an error or writes nothing is a fault. Where bash is installed, that
    goes for each program of a pipeline, otherwise for its last.

    The commands are the user's own and can do anything: use it only when the configuration says
    `allow_pipes`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, id: str, command: str) -> Audio:
        """Return the audio that `command` writes to its standard output."""
        name = hashlib.sha256(command.encode()).hexdigest()[:20]
        path = self._folder.absolute() / f"{name}.wav"
        if not path.exists() or not path.stat().st_size:
            bash = shutil.which("bash")
            shell = [bash, "-o", "pipefail", "-c"] if bash else ["/bin/sh", "-c"]
            process = subprocess.run([*shell, command], capture_output=True, check=False)
            if process.returncode not in (0, PIPE_CLOSED) or not process.stdout:
                last = process.stderr.decode(errors="replace").strip().splitlines()[-1:]
                how = f"ended with status {process.returncode}"
                how = how if process.returncode else "wrote nothing"
                detail = f"`{command}` {how}: {' '.join(last)}".removesuffix(": ")
                return Audio(command, recording_id=id, fault=("unreadable-audio", detail))
            with open_atomically(path, "wb") as file:
                file.write(process.stdout)
        return Audio(str(path), recording_id=id)
