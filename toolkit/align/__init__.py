"""Forced alignment of corpora and of single recordings, and the EM training of GMM systems."""
