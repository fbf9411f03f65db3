"""Every proof passes on good artifacts, and fails on a planted fault with a message that names the place."""
