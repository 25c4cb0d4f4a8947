"""Losses: pure functions of arrays. Each returns one value per example or token; the caller reduces."""
