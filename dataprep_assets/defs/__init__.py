"""The cookbook: one folder a dataset, holding `defs.yaml` and nothing but data beside it. Add yours here."""
