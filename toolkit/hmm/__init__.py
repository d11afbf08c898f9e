"""Topologies, phonetic trees, Gaussian mixtures and their transforms."""
