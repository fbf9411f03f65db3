"""Commands beside the tests: benchmarks, the drill, comparisons with originals, hostile files, makers of samples."""
