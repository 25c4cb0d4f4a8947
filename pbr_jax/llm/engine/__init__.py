"""Models in this process: reading prompts, scoring, decoding, on a CPU, GPU or TPU."""
