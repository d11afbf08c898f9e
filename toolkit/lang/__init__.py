"""Words: lexicon, pronunciation guessing, symbol tables and n-gram language models."""
