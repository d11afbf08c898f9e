"""Export of lang directories, decoding graphs and log-likelihoods for Kaldi and its relatives."""
