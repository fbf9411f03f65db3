"""Compare our output with that of upstream programs, which are not available in CI: each needs the folder of a
clone.
"""
