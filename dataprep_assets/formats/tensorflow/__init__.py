"""What TensorFlow Datasets and Grain read."""
