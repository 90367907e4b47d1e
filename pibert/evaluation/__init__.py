"""What a trained model is worth, next to classical methods."""
