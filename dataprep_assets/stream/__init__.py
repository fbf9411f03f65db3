"""Documents to a token stream, its index and its proofs: what corpora, releases and blends share."""
