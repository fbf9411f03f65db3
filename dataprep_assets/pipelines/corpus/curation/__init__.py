"""Tags, filter rules and the document table of a corpus."""
