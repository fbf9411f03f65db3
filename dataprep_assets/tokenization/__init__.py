"""Tokenizer bundles, the engines that encode with them, and the certificate that lets a fast one be used."""
