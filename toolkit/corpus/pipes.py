"""Runs the shell commands of a Kaldi wav.scp, once each, into files, if the user allows it."""

import hashlib
import subprocess
from pathlib import Path

from toolkit.corpus.pairing import Audio
from toolkit.storage.files import open_atomically


class PipeRunner:
    """Runs commands and keeps their output as files in `folder`, so that each runs only once.

    The commands are the user's own and can do anything: use it only when the configuration says
    `allow_pipes`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, id: str, command: str) -> Audio:
        """Return the audio that `command` writes to its standard output."""
        name = hashlib.sha256(command.encode()).hexdigest()[:20]
        path = self._folder.absolute() / f"{name}.wav"
        if not path.exists():
            process = subprocess.run(command, shell=True, capture_output=True, check=False)
            if process.returncode != 0:
                last = process.stderr.decode(errors="replace").strip().splitlines()[-1:]
                detail = f"`{command}` ended with status {process.returncode}: {' '.join(last)}"
                return Audio(command, recording_id=id, fault=("unreadable-audio", detail))
            with open_atomically(path, "wb") as file:
                file.write(process.stdout)
        return Audio(str(path), recording_id=id)
