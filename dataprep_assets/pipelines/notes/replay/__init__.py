"""Mixtures of several datasets of packed notes."""
