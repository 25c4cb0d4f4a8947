"""Does the users' own history help, whom, and by how much: `pbr-jax check`, one verdict within minutes."""
