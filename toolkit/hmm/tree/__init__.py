"""Phonetic decision trees: their statistics, questions, growth and form."""
