"""Reasons for dropping rows of a blend, and the names that rules cannot have."""

from dataprep_assets.curation.benchmarks.columns import BENCHMARK
from dataprep_assets.curation.selection import DUPLICATE
from dataprep_assets.curation.selection import RESERVED as RESERVED_FOR_DOCUMENTS
from dataprep_assets.integrity.receipt import RETRACTED
from dataprep_assets.tokenization.chat.messages import FILTERED, REFUSALS
from dataprep_assets.tokenization.chat.rewritten_messages import REWRITTEN_EMPTY

NO_PROMPT = "no_prompt"
"""Reason for a bad record without a prompt."""
NO_PREFERENCE = "no_preference"
"""Reason for a pair of answers if they are equal or one is empty."""
BAD_PLACEHOLDER = "bad_placeholder"
"""Reason for a record with a malformed placeholder."""
LEFT_OUT_BY = "left_out_by_"
"""Prefix of the reason for records that a transform left out."""
EMPTY, TOO_LONG, TOO_LONG_PAIR = "empty_after_masking", "longer_than_pack_size", "longer_than_max_length"
CHOSEN_REASONS = (*FILTERED, EMPTY, TOO_LONG, TOO_LONG_PAIR, REWRITTEN_EMPTY, BENCHMARK, DUPLICATE, RETRACTED)
"""Reasons that the declaration chooses, in addition to rules. They never fail the build or use up the budget."""
RESERVED = RESERVED_FOR_DOCUMENTS.union(CHOSEN_REASONS, REFUSALS, (BAD_PLACEHOLDER, NO_PREFERENCE, NO_PROMPT))
"""Reasons that cannot be names of rules."""
