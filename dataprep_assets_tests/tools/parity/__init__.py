"""Our output beside that of the originals, which are not there in CI: a folder of each is given."""
