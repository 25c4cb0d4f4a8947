"""Scores of answers and rankings, their intervals, and the tables that compare runs.

Read `evaluate` first; `metrics` and `ranking` say what a number means, `significance` how sure it is,
`differences` what may be compared, `report` how runs are set side by side.
"""
