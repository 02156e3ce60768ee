"""What goes on for as long as a zone runs."""
