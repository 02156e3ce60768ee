"""A zone's file server, and a client that speaks 9P to the server as a hostile guest would."""
