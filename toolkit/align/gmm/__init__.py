"""GMM systems: EM training from monophones to speaker-adaptive training, and fMLLR."""
