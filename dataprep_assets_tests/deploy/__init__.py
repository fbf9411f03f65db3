"""Tests of deploy/ with the real programs, as far as one machine can run them."""
