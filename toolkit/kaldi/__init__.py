"""Kaldi's and OpenFst's formats, in and out."""
