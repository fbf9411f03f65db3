"""Local servers that stand in for remote services, with programmable faults."""
