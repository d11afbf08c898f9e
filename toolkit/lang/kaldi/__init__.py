"""Import and export of Kaldi's dictionary and lang directories."""
