"""Separators and BOS: missing, extra and doubled ones are named with their document and offset."""

from dataclasses import replace

import numpy as np
import pytest

from dataprep_assets.integrity.receipt import Ledger
from dataprep_assets.stream import separators
from dataprep_assets.stream.separators import separators_match_documents
from dataprep_assets.stream.token_shard import ENDS, TOKENS
from dataprep_assets.stream.tokenizer import describe_literals, find_rendered_remarks
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.corpus.sample_shards import Sample, Shard, Special, make_plan
from dataprep_assets_tests.pipelines.corpus.shard_checks import (
    PAD,
    SEPARATOR,
    check_shard,
    edit,
    find_failing,
    put,
    with_ledger,
)
from dataprep_assets_tests.pipelines.corpus.shards import bundle


def test_a_missing_separator_names_its_document(shard: Shard) -> None:
    ends = np.fromfile(shard.directory / ENDS, "<u8")
    edit(shard.directory / TOKENS, "<u2", put(int(ends[7]) - 1, 5))
    found = separators_match_documents(shard.directory, shard.receipt)
    assert_names(found.summary, "document 7", ends[6], SEPARATOR)


def test_a_shard_whose_separator_differs_from_its_recipe_is_reported(shard: Shard) -> None:
    plan = make_plan(bundle())
    assert separators_match_documents(shard.directory, shard.receipt, plan).passed
    other = replace(plan, separator_id=PAD, bos_id=PAD)
    found = separators_match_documents(shard.directory, shard.receipt, other)
    assert_names(found.summary, SEPARATOR, PAD)
    assert "(and 1 more)" in found.summary


def test_an_extra_separator_fails_the_count(shard: Shard) -> None:
    ends = np.fromfile(shard.directory / ENDS, "<u8")
    length = np.diff(ends)
    document = int(np.flatnonzero(length > 10)[0]) + 1
    edit(shard.directory / TOKENS, "<u2", put(int(ends[document]) - 5, SEPARATOR))
    found = separators_match_documents(shard.directory, shard.receipt)
    assert_names(found.summary, len(ends) + 1, SEPARATOR, len(ends))


@pytest.mark.parametrize("block", [1 << 20, 7])
def test_a_doubled_separator_names_both_offsets(
    shard: Shard, special: Special, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(separators, "BLOCK", block)
    shard = special(["", "", "some words of one document", ""], special_tokens="match")
    assert separators_match_documents(shard.directory, shard.receipt).passed
    end = int(np.fromfile(shard.directory / ENDS, "<u8")[2])
    edit(shard.directory / TOKENS, "<u2", put(end - 2, SEPARATOR))
    receipt = with_ledger(shard.receipt, literal_separators=1)
    found = separators_match_documents(shard.directory, receipt)
    assert_names(found.summary, SEPARATOR, end - 2, end - 1, 2)
    assert found.facts["repeated_separators"] == 1
    assert not found.warning


def test_text_that_ends_with_its_own_separator_is_a_warning(sample: Sample, special: Special) -> None:
    shard = special(["rendered by a template<|endoftext|>", "plain"], special_tokens="match")
    found = separators_match_documents(shard.directory, shard.receipt)
    assert not found.passed
    assert found.warning
    assert "document 0" in found.summary
    assert find_failing(check_shard(shard, sample.bundle, "match")).keys() == {"separators_match_documents"}


def test_a_missing_and_a_doubled_bos_name_their_document(special: Special) -> None:
    shard = special(["first document", "second document"], bos_id=PAD)
    start = int(np.fromfile(shard.directory / ENDS, "<u8")[0])
    edit(shard.directory / TOKENS, "<u2", put(start + 1, PAD))
    found = separators_match_documents(shard.directory, shard.receipt)
    assert_names(found.summary, "BOS", PAD, start, start + 1, 1)
    edit(shard.directory / TOKENS, "<u2", put(start, 5))
    found = separators_match_documents(shard.directory, shard.receipt)
    assert_names(found.summary, 1, start, "BOS", PAD)


@pytest.mark.parametrize(("mode", "many", "told"), [("text", 5, True), ("text", 4, False), ("match", 10, False)])
def test_texts_rendered_by_a_template_are_reported_before_they_are_used_as_plain_text(
    mode: str, many: int, told: bool
) -> None:
    literal = bundle().special_tokens[0].content
    texts = [f"{literal}user" if number < many else "user" for number in range(10)]
    keys = ("document", "special_tokens")
    remarks = list(find_rendered_remarks(texts, bundle(), mode, keys))
    assert [(remark.keys, remark.hint) for remark in remarks] == [(keys, True)] * told
    lines = list(describe_literals(Ledger(documents=10, special_literals=many), mode))
    assert len(lines) == 1
    assert not list(describe_literals(Ledger(documents=10), mode))
