"""Benchmarks: each prints ratios between alternatives that were measured in the same run.

A benchmark is a module that defines `benchmark()`, which returns a table, or a click `command` with
options of its own.
"""

BENCHMARKS = {
    "align": "align",
    "all": "suite.command",
    "beams": "beams",
    "compression": "compression",
    "ctc-decode": "ctc.decode",
    "ctc-sweep": "ctc.sweep",
    "decode": "decode",
    "features": "features",
    "g2p": "g2p",
    "growth": "growth.command",
    "int8": "int8",
    "lattice": "lattice",
    "pipeline": "pipeline",
    "readers": "ctc.readers",
    "scaling": "scaling.command",
    "score": "score",
    "serve": "serve",
    "shards": "shards",
    "train": "train",
    "train-ctc": "ctc.train",
    "transcribe": "transcribe",
    "tta": "tta.command",
}
"""The benchmarks of `toolkit bench NAME`: name -> module below `toolkit.bench`."""
