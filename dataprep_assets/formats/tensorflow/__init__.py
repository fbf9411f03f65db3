"""Formats that TensorFlow Datasets and Grain read."""
