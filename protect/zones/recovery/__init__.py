"""Finding what was lost: ends, marks, records, connections; and the end of all zones with their host."""
