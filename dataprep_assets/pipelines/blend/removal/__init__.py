"""Removal of rows from a blend: their ids, the retraction list, and the search for artifacts that contain them."""
