"""The check of a corpus: all faults found and listed before anything expensive runs."""
