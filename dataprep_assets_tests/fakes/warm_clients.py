"""Read the files of botocore's first client. A process imports this module before it forks others that use buckets."""

from dataprep_assets_tests.fakes.buckets import new_client

new_client("http://127.0.0.1:1")
