"""Rewriters of `rewrite:`, which change the texts of documents before anything else reads them."""
