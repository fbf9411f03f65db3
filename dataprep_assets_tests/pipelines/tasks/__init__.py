"""Tests of task folders."""
