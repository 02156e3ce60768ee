"""xenpod-dra: publishes zone memory to the scheduler; claims of it become reservations of protectd."""
