"""Scoring: word and character error rates, alignments, significance tests, results."""
