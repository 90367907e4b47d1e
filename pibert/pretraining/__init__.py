"""Self-supervised pretraining: masks, corruption, and negatives of equation consistency."""
