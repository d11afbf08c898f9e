"""Simulator of data-parallel training: N workers in one process, under a virtual clock."""
