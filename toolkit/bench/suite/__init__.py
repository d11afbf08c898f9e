"""All benchmarks in one run, with a history of runs: `toolkit bench all`."""
