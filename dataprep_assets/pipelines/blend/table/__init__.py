"""The document table of a blend: every source row with its columns and its outcome."""
