"""Rules for every pytest session: no heavy library in a test process, no worker that dies unnoticed, time limits.

The modules without tests are pytest plugins that `pyproject.toml` lists.
"""
