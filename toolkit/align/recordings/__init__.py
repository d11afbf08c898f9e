"""Alignment of recordings, and of folders of them, with an aligner bundle."""
