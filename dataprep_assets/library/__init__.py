"""The library behind `import dataprep_assets`: a project that is opened, and what can be asked of its datasets.

The command is written with it. Dagster is imported when a declaration is loaded.
"""
