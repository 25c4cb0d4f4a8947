"""Users' remarks: a log of what was told, a judge, and what both change in a living corpus (LUF, 2.3)."""
