"""Words and sentences of a language, as its usual library splits them."""
