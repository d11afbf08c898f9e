"""Learning from unlabelled speech: a teacher's targets, scheduled learning, self-training."""
