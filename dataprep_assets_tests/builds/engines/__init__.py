"""The engines of `dataprep_assets.builds.engines`, each on the real thing."""
