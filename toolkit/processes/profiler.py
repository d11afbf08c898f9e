"""Flame graphs of Python programs by py-spy, worker processes included."""

import os
import shutil
import sys
from pathlib import Path

from toolkit.errors import ToolkitError


class NoProfilerError(ToolkitError):
    """py-spy is not installed."""


def py_spy(output: Path) -> list[str]:
    """Return the command under which a Python program, appended to it, has its flame graph drawn.

    py-spy exits with 0 whatever the program's exit status is.

    Args:
      output: the SVG file; its folder must exist.

    Raises:
      NoProfilerError: there is no py-spy in this environment or on the PATH.
    """
    folders = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    program = shutil.which("py-spy", path=folders)
    if program is None:
        raise NoProfilerError(
            "profiles are drawn by py-spy, which is not installed: "
            f"{sys.executable} -m pip install py-spy"
        )
    return [program, "record", "--subprocesses", "--output", str(output), "--"]
