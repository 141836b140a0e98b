"""Windows, deadlines and revisions: facts in, verdicts out."""
