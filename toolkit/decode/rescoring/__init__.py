"""Rescoring of n-best lists with a neural language model."""
