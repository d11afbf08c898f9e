"""Words: lexicon, pronunciation guessing, symbol tables, n-gram language models."""
