"""Semi-supervised learning: a teacher's targets, scheduled learning, self-training."""
