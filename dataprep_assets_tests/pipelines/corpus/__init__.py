"""Corpus"""
