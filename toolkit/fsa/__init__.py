"""Finite-state graphs, dense search and lattices; the only package that imports k2."""
