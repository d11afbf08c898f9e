"""Files that are there whole or not at all, checked reading of what others wrote, digests."""
