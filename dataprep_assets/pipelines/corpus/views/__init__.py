"""The views of a corpus: one module per trainer format, each with a `VIEW` (see `pipelines/corpus/corpus_view.py`).

A module in this folder is all that a new view needs beside its format: `views:` in the YAML takes its name.
"""
