"""Bundles of CTC networks: network, output units, dictionary, n-grams, search."""
