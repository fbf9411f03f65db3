"""Tests of publications on the Hub."""
