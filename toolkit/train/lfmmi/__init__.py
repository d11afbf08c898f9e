"""Lattice-free MMI: training on phone sequences against a denominator graph."""
