"""Imported before a process forks others that use buckets: it reads what botocore reads for its first client."""

from dataprep_assets_tests.fakes.buckets import new_client

new_client("http://127.0.0.1:1")
