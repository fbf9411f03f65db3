"""The generator of the project's own sample corpus and tokenizer, and its tests."""
