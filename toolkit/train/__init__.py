"""Training of networks: data, objectives, the loop, schedules, checkpoints."""
