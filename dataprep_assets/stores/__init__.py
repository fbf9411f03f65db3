"""Object stores, and transfers to and from them."""
