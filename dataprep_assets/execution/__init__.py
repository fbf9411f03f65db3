"""Execution of tasks on worker processes or on a Ray cluster."""
