"""Files, errors, the terminal, words and types. Nothing here imports the rest of the package."""
