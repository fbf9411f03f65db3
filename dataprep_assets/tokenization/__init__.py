"""Tokenizer bundles, the engines that encode with them, and the certificate that permits a fast engine."""
