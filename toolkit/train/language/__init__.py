"""Training of neural language models."""
