"""Alignments in Kaldi's formats, in and out."""
