"""Access to source files: the Hugging Face Hub, local folders, caches, object storage; and readers of their formats."""
