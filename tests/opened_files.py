"""Records files that Python opens for reading; C libraries such as libsndfile do not count."""

import os
import sys
from contextlib import contextmanager

_called = []


def _hook(event, arguments):
    if event == "open" and _called:
        path, mode, _ = arguments
        if isinstance(path, str | os.PathLike) and isinstance(mode, str) and mode[:1] == "r":
            for function in tuple(_called):
                function(os.fspath(path))


sys.addaudithook(_hook)  # it cannot be removed: all tests share one


@contextmanager
def on_open(function):
    """Call a function with the path of every file that is opened for reading."""
    _called.append(function)
    try:
        yield
    finally:
        _called.remove(function)


@contextmanager
def opened_files():
    """A list that gets the paths of the files that are opened for reading."""
    paths = []
    with on_open(paths.append):
        yield paths
