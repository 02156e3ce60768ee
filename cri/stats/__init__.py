"""Statistics and metrics of pods and containers, from their zones."""
