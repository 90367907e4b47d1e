"""Flow data: the native format, learning samples and their statistics."""
