"""Tell people about incidents: one page for each incident, updated in place, to the right receiver."""
