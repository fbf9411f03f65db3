"""deploy/ against the real programs, as far as one machine has them."""
