"""xenpod-dra: publishes zone memory to the scheduler; turns memory claims into protectd's reservations."""
