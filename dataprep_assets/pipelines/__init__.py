"""Pipelines, with one subpackage for each kind of dataset."""
