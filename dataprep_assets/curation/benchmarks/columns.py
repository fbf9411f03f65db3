"""The columns of the benchmark tagger."""

from dataprep_assets.curation.table import Columns

BENCHMARK, OVERLAP = "benchmark", "benchmark_overlap"
COLUMNS: Columns = {BENCHMARK: "string", OVERLAP: "number"}
"""The best matching part of an item, `set:row:field` or `set:row` for its short texts together, and its share."""
