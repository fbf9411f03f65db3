"""Stream"""
