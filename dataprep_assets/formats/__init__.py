"""The on-disk formats: one module each, with its writer, its reader and its validator; no other place knows a byte layout."""
