"""A domain as its toolstack is told of it: how it boots, how large it is, its share of CPUs."""
