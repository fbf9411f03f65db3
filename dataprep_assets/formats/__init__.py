"""The on-disk formats: one module for each, with writer, reader and validator; no other code knows a byte layout."""
