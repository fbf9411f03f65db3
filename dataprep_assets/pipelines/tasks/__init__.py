"""The tasks pipeline: task folders of an old project, migrated into a new one."""
