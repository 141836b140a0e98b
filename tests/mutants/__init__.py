"""Mutation check: change the program in one place and see whether a test notices (`make mutants`)."""
