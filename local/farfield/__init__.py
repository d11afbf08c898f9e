"""Far-field speech simulated from any clean corpus (C1, C32)."""
