"""The notes pipeline: clinical notes by birth month, packed into rows."""
