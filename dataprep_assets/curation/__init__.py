"""Properties of documents, and the selection of documents for token streams. No other package selects documents."""
