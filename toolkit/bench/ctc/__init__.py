"""Benchmarks of the CTC recipe's training, readers and decoders."""
