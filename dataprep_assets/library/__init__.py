"""The library behind `import dataprep_assets`: open projects and their datasets.

The commands use it. Dagster is imported only where it is needed, such as to build or to read its instance.
"""
