"""What has to be done for each partition, why, and what it will cost."""
