"""What the readers share: names, array roles, stores, grids, files, metadata overrides."""
