"""The library behind `import dataprep_assets` and the commands: open projects and their datasets.

Dagster is imported only where it is needed, such as to build or to read its instance.
"""
