"""A simulated fleet that knows the truth: nodes, jobs and attempts that fail at published rates, and a score.

    schedule ─▶ plays as lines ─▶ node agents ─▶ facts on the wire ─▶ joining detector ─▶ incidents ─▶ notifier ─▶ score

Everything from the node agents to the notifier is the product itself, on a simulated clock. Everything before it
follows from a seed. `bench/fleet.py` prints the score, `tracecore serve --demo` shows a small fleet.
"""
