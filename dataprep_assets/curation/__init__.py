"""What is known of each document, and which are kept: the one place that decides what enters a token stream."""
