"""Corpora as lhotse manifests: readers, checks and splits; Kaldi data directories."""
