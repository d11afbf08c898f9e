"""Output units of CTC models: characters, or pieces of words."""
