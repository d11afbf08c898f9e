"""Imported last by the server from which workers are forked, see `toolkit.processes.context`."""

from toolkit.processes.imports import keep_imports

keep_imports()
