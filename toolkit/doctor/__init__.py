"""Whether this machine has what the toolkit needs, engine by engine."""
