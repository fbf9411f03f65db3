"""The pages of `docs/` that are generated, and the tests of all pages."""
