"""Other people's engines, each in a process of its own."""
