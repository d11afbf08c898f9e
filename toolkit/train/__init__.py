"""Network training: data, objectives, the training loop, schedules, checkpoints."""
