"""Tasks"""
