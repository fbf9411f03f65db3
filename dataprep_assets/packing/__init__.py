"""Packing as pure functions over arrays: which sequences share a row, how long ones are cut, what the rows hold.

`algorithms` puts lengths into bins, `splitting` cuts documents that are longer than a row, `rows` lays tokens out as
training rows, and `row_defects` checks such rows against their invariants. Nothing here reads or writes a file.
"""
