"""Publication of a finished dataset to the Hugging Face Hub."""
