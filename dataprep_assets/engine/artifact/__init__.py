"""What an artifact is: its spec, its recipe, its facts and how it is built."""
