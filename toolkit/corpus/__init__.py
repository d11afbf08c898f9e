"""Corpora as lhotse manifests: read, check, split; Kaldi data directories."""
