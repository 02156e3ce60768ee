"""Makes the parts of the documentation that follow from the code, and its site."""
