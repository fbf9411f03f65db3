"""Filter rules and the search for benchmark items, which drop rows of a blend before they are rendered or written."""
