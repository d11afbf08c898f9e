"""N-gram language models: estimation, ARPA files, queries, perplexity."""
