"""Decoding: first pass, lattice rescoring, confidences, recogniser bundles, transcription."""
