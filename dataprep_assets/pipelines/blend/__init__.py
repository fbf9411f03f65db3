"""Blend"""
