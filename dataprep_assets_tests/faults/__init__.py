"""Faults"""
