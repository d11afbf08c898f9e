"""CTC decoding: searches with and without a dictionary on the same posteriors (A21)."""
