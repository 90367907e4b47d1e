"""Real OpenFOAM cases: how they are made, and what OpenFOAM itself samples from them."""
