"""The on-disk formats: a module each with writer, reader and validator; no other place knows a byte layout."""
