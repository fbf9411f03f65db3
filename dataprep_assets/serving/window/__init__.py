"""The window of a release on a training machine."""
