"""A drill that applies seeded faults, one at a time, to copies of every pipeline's artifacts, and records who detected
each.
"""
