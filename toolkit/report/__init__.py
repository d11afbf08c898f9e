"""The page that shows a run, and what pages are made of."""
