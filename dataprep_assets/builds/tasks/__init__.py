"""Task folders: what the trainer's loader expects of each task, and the migration that puts it where it looks."""
