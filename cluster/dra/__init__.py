"""xenpod-dra: publishes zone memory to the scheduler, and turns memory claims into reservations of
protectd.
"""
