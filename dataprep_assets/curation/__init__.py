"""Properties of documents, and the selection of documents for token streams, which only this package decides."""
