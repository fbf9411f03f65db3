"""On-disk formats. Each module has the writer, reader and validator of one format; no other code knows its bytes."""
