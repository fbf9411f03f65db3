"""The columns of the benchmark tagger."""

from dataprep_assets.curation.table import Columns

BENCHMARK, OVERLAP = "benchmark", "benchmark_overlap"
COLUMNS: Columns = {BENCHMARK: "string", OVERLAP: "number"}
"""The best matching part of an item, `set:row:field` or `set:row` for its short texts together, and its share."""
DESCRIPTIONS = {
    BENCHMARK: "Best matching part of an item, as `set:row:field`, or as `set:row` for its short texts together.",
    OVERLAP: "Share of this part's words that the text contains, from 0 to 1.",
}
