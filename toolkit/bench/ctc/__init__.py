"""Benchmarks of the CTC recipe's training, record readers and decoders."""
