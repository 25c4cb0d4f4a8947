"""A run: from a config to the files of its folder, and what is read from such a folder."""
