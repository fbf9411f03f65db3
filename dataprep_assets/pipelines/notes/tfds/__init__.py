"""Directories of TensorFlow Datasets."""
