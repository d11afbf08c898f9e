"""Finite-state graphs, dense search and lattices: the only room that imports k2."""
