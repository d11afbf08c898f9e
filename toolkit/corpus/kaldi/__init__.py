"""Import, export and validation of Kaldi data directories."""
