"""Lineage for other systems: events about each built artifact, its inputs and its digests."""
