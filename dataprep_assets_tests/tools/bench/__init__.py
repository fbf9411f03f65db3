"""The benchmark: this project's token pipeline beside the ways in which it is usually done, and beside the floor.

`python -m dataprep_assets_tests.tools.bench` runs it.
`contenders` holds what is compared, `runner` measures from outside.
"""
