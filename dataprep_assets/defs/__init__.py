"""Datasets: one folder per dataset, with its `defs.yaml`, its data and its code. Add yours here."""
