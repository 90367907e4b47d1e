"""Self-supervision: which points a model must fill in, what it sees there, what it must refute."""
