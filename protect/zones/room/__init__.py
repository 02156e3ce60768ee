"""Room on this host: who has which memory, what is promised to whom, how many zones fit."""
