"""Training: losses, objectives, augmentation, and the engine that runs them."""
