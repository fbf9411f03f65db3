"""Kinds of duplicates and normalizations of texts, which the declaration and the signatures share."""

from typing import Literal

Kind = Literal["exact", "near"]
"""Kind of duplicates: equal texts, or texts with common shingles."""
Normalization = Literal["words", "space", "none"]
"""Normalization before texts are compared.

`words` keeps words and signs. `space` ignores the kind and amount of white space between words. `none` only normalizes
line ends. All of them normalize the Unicode form.
"""
