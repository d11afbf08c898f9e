"""Scaling of the methods of data-parallel training, simulated (B2, B4, C31)."""
