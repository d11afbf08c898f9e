"""Shared parts of benchmarks: harness, limits, utilisation, platforms and synthetic data."""
