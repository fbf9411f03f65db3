"""Commands of the test package: benchmarks, the drill, comparisons with upstream, hostile files, sample generators."""
