"""Features in Kaldi's archives, in and out."""
