"""Alignment of recordings and folders of them with an aligner bundle."""
