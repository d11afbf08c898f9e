"""`toolkit new-corpus`: writes a recipe for a corpus of the user's own."""
