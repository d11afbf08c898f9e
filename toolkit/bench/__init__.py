"""Benchmarks: each module defines `benchmark()`, run by `toolkit bench NAME`."""
