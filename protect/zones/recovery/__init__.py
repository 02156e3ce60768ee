"""Recovery of lost ends, marks, records and connections; the end of all zones with their host."""
