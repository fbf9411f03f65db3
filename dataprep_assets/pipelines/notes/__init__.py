"""Notes"""
