"""Where a corpus comes from: its snapshot and its manifest."""
