"""Dagster's webserver behind a guard: the same UI, and no page of another site can drive it.

`python -m dataprep_assets.webserver` takes what `dagster-webserver` takes. `guard` says what is refused and why.
"""
