"""What benchmarks measure with: the harness, limits, utilisation, platforms, made-up material."""
