"""Decoding: first pass, lattice rescoring, confidences, recogniser bundles and transcription."""
