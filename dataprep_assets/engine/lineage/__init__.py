"""Lineage events for other systems: an event about each built artifact, its inputs and its files."""
