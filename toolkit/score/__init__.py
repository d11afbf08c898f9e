"""Error rates, alignments and the table of results."""
