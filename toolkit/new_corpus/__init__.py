"""Recipes for corpora that were never seen before."""
