"""The project's own sample corpus and tokenizer: their generator and its tests."""
