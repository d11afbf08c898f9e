"""Kaldi's data directories, in and out."""
