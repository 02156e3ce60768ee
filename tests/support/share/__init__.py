"""A zone's file server, and a client that speaks 9P to it as a hostile guest would."""
