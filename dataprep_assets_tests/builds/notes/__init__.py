"""Tests of the builds over cohorts of notes."""
