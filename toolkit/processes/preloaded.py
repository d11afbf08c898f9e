"""Imported last by the server from which workers are forked, see `toolkit.processes.workers`."""

from toolkit.processes.workers import freeze_imports

freeze_imports()
