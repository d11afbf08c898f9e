"""Sequence-discriminative training: sMBR on lattices (C7, C8)."""
