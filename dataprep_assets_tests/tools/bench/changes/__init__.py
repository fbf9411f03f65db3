"""Apply seeded changes to three small corpora in a project of another name, each followed by a user's commands.

`corpus` has a corpus with its inputs, `keys` another value of every key of its declaration, `mutations` the possible
changes and the artifacts that each may affect, `project` the project with its commands. `rounds` judges the results of
the commands, and `training` the reports of a schedule over two of the corpora, and its reads.
"""
