"""Questions in blocks and in folds: each is answered by what was learned from the others."""
