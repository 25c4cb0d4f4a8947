"""Memory systems of others: each runs in a process and an environment of its own, and we only talk to it."""
