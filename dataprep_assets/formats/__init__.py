"""On-disk formats: one module each, with writer, reader and validator. No other code depends on byte layouts."""
