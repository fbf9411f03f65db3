"""Seeded changes of three small corpora in a project of another name, each followed by what a user types.

`corpus` is a corpus and what it is made of, `keys` every key of its declaration with another value, `mutations` what
can happen to it and what that may touch, `project` the project with its commands, `rounds` judges what the commands do,
`training` what a schedule over two of the corpora tells, and what is read by it.
"""
