"""Benchmarks: a module with `benchmark()`, or `command`, is run by `toolkit bench NAME`."""
