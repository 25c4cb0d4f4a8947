"""Results of stages on disk, and the keys that name them."""
