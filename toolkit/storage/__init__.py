"""Atomic writing of files, safe reading of untrusted ones, and content digests."""
