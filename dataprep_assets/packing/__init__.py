"""Packing as pure functions over arrays: assigning sequences to rows, splitting long ones, and laying out rows.

`algorithms` puts lengths into bins, `splitting` splits documents that are longer than a row, `rows` lays tokens out as
training rows, and `row_defects` checks such rows against their invariants. No function here reads or writes a file.
"""
