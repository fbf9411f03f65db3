"""Dagster's webserver with a guard, which prevents pages of other sites from controlling the UI.

`python -m dataprep_assets.webserver` takes the options of `dagster-webserver`. The module `guard` describes which
requests are refused, and why.
"""
