"""Finished runs for other programs: rankings, tables, tuned encoders, states of learners."""
