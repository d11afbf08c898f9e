"""Stages of a recipe: declare, plan, run, mark, resume; the command line of a run.py."""
