"""What `toolkit NAME` runs: a module per command, which imports what it needs when called."""
