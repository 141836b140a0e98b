"""The scan planner: which statements can run on a record, found by one scan for all their constant guards.

Hyperscan only selects; the exact RE2 expression of the statement decides, so meaning never changes.
"""
