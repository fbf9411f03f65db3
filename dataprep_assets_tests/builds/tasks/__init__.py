"""Tests of the task folders: declaration, contracts, loader, migration."""
