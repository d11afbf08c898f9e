"""Manifests in, checked, split; Kaldi's data directories in and out."""
