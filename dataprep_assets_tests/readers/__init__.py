"""The consumers' own libraries, read with in processes of their own; see `process`."""
