"""Stages of a recipe: declared, planned, run, marked done, resumed; the command line of run.py."""
