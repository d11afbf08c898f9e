"""Other projects' decoders and aligners, for comparison, run in processes of their own."""
