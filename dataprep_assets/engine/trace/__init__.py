"""Where documents are, and what their removal needs."""
