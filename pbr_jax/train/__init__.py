"""Training: one state, one step, one loop for everything that is trained."""
