"""The host's capabilities, room and reservations."""
