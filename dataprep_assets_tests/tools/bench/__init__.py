"""The benchmark: this project's token pipeline compared with the usual ways of tokenizing, and with the floor.

`python -m dataprep_assets_tests.tools.bench` runs it. `contenders` contains the compared programs, `runner` measures
from outside.
"""
