"""Seeded changes of a small corpus: what is announced, what is rebuilt, what the change decides, and why.

`corpus` is the corpus and what can happen to it, `decided` a model of what follows (written from the documentation, not
from the product), `rounds` compares both with the product and with a build from scratch.
"""
