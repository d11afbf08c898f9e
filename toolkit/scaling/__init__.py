"""Simulated scaling of data-parallel training methods (B2, B4, C31)."""
