"""The scan planner: one Hyperscan scan finds which statements can do something on a record.

Hyperscan only selects candidates. The exact RE2 expression of a statement decides, so results never change.
"""
