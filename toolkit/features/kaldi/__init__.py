"""Import and export of features in Kaldi archives."""
