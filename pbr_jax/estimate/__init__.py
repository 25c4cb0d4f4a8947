"""What a run will ask of its models, and how long that takes on a chip, before anything is asked."""
