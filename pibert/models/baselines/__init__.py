"""The paper's five baselines, from their mathematics."""
