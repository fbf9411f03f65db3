"""Release"""
