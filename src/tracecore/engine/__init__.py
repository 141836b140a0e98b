"""The engine that joins facts into verdicts: the same code runs live, in a replay and in tests."""
