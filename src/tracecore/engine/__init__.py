"""Windows, keys, evaluation, revision and clearing of verdicts: one engine for live, replay and tests."""
