"""Kaldi's dictionary and lang directories."""
