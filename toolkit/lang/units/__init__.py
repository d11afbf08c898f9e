"""Output units of CTC models: characters or word pieces."""
