"""Pairs of every kind with chat templates of many styles either pass every check or are refused."""

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.integrity.artifacts import Artifact, LocalArtifacts
from dataprep_assets.pipelines.blend.pairs.pairs_checks import PAIRS_CHECKS, OpenedPairs
from dataprep_assets.pipelines.blend.pairs.shard import PairsFacts, PairsShard, build_pairs_shard
from dataprep_assets.pipelines.blend.sft.chat_plan import ChatSource, chat_plan
from dataprep_assets.stores.files import sha256_file
from dataprep_assets.tokenization.certificate import refuse_engine
from dataprep_assets.tokenization.chat.template import ChatTemplate
from dataprep_assets_tests.pipelines.blend.pairs.preference_rows import CALL, TOOL, make_assistant, make_user
from dataprep_assets_tests.pipelines.blend.pipeline import write_rows
from dataprep_assets_tests.tools.atlas.template_folder import own_templates, write_tokenizer_of

REFUSED = {"lost_in_template", "template_refused", "several_sequences", "different_prompts"}
TEMPLATES = own_templates()


def make_kinds() -> list[dict[str, Any]]:
    """Return a pair of each kind."""
    question, yes, no = make_user("Tide?"), make_assistant("High."), make_assistant("Low.")
    thought = {"reasoning_content": "Think of the moon."}
    sides = {"chosen": [yes], "rejected": [no]}
    result = {"role": "tool", "content": "3"}
    return [
        {"prompt": [question], **sides},
        {"prompt": [{"role": "system", "content": "Keeper."}, question], **sides},
        {"prompt": [question, make_assistant("Wait."), make_user("Now?")], **sides},
        {"prompt": [question], "chosen": [{**yes, **thought}], "rejected": [{**no, **thought}]},
        {"prompt": [question], "chosen": [{**yes, **thought}], "rejected": [no]},
        {"prompt": [question, make_assistant("Wait.", **thought), make_user("Now?")], **sides},
        {
            "prompt": [question],
            "tools": [TOOL],
            "chosen": [make_assistant("", tool_calls=[CALL]), result, yes],
            "rejected": no,
        },
        {"prompt": [question], "chosen": [yes, make_user("Why?"), make_assistant("Because.")], "rejected": [no]},
        {"prompt": [question], "chosen": [make_assistant("<think>\nhm\n</think>\n\nHigh.")], "rejected": [no]},
        {"prompt": [make_user("What is <|im_end|>?")], **sides},
    ]


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_kind_of_pair_passes_or_is_refused(name: str, tmp_path: Path) -> None:
    bundle = write_tokenizer_of(name, TEMPLATES[name], tmp_path / "tokenizer")
    path = write_rows(tmp_path / "rows.jsonl", make_kinds())
    plan = chat_plan(
        bundle,
        refuse_engine(bundle, "text", "tokenizers", "a test"),
        ChatTemplate.load_from_tokenizer(bundle),
        pack_size=4096,
        template_date=date(2026, 1, 31),
        bad_rows="drop",
        sample_rate=1.0,
    )
    source = ChatSource(
        label=path.name,
        path=path,
        format="jsonl",
        compression=None,
        sha256=sha256_file(path),
        ordinal=0,
        size=path.stat().st_size,
    )
    shard = PairsShard(
        artifact=Artifact(dataset="kinds", name="pairs", partition="rows-00000"),
        store=LocalArtifacts(tmp_path / "artifacts"),
        sources=(source,),
        plan=plan,
        row_group_size=4,
        compression="zstd",
        budget=1.0,
    )
    receipt, _ = build_pairs_shard(shard)
    opened = OpenedPairs.open(shard)
    assert {check.name: found.summary for check in PAIRS_CHECKS if not (found := check.run(opened)).passed} == {}
    assert receipt.ledger is not None
    assert {reason.partition(":")[0] for reason in receipt.ledger.dropped} <= REFUSED
    assert PairsFacts.from_receipt(receipt).pairs >= 5
