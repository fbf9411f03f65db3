"""Taggers of documents from the web, which look up the URL of a document."""
