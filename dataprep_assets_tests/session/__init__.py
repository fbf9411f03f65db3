"""What every pytest session here holds: no heavy library in a test process, no worker that dies unnoticed, time limits.

The modules without tests are pytest plugins; `pyproject.toml` names them.
"""
