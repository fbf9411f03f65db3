"""What an artifact is, and what follows from a list of them."""
