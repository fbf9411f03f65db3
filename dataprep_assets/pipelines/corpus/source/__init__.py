"""The source of a corpus: its manifest and its snapshot."""
