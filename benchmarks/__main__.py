"""`python -m benchmarks NAME` runs a benchmark."""

from benchmarks.run import main

main(prog_name="python -m benchmarks")
