"""Near-duplicate rows of a blend: signatures of the shards' rows, and the rows that duplicate a kept row."""
