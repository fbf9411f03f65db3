"""The token stream shared by corpora, releases and blends: its build from documents, its index and its checks."""
