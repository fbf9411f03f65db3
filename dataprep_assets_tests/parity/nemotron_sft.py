"""Sequences and loss masks of chat data beside those of Nemotron's `data_prep`, on the same invented rows.

Theirs come from `core/chat_sft_shard_core.py`, a row at a time; ours from the spool of the same rows, with
`like: nemotron` and the chat template of their clone, named as a path. Theirs wants transformers below 5, which leaves
`reasoning` of a message where it is; a newer one copies it to `reasoning_content`, so that is turned off. Entry point:
`compare`.
"""

import contextlib
import importlib
import shutil
import sys
import tempfile
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from fsspec import filesystem
from transformers import AutoTokenizer
from transformers.utils import chat_template_utils

from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.packing.algorithms import Algorithm
from dataprep_assets.pipelines.blend.sft import spool
from dataprep_assets.pipelines.blend.sft.chat_plan import ChatPlan, chat_plan
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.certificate import refused_outright
from dataprep_assets.tokenization.chat.choices import NEMOTRON
from dataprep_assets.tokenization.chat.template import ChatTemplate
from dataprep_assets_tests.parity.absent import stand_in
from dataprep_assets_tests.parity.conversations import SHAPES, START, rows, write_rows
from dataprep_assets_tests.parity.shards import packed, source_of
from dataprep_assets_tests.parity.table import Row
from dataprep_assets_tests.tokenization.chat.trap import TRAP

TOKENIZER = Path(spool.__file__).parents[3] / "defs" / "samples" / "sample_blend_sft" / "tokenizer"
PER_SHAPE = 30
PACK_SIZE = 1 << 20
TEMPLATES = ("nano3", "lightning35")
"""Theirs. The template of our own tests is compared too: what they say of `like: nemotron` is so."""
_ALGORITHMS: tuple[Algorithm, ...] = ("concatenative", "first_fit_decreasing")
_ALIAS = "_alias_reasoning_fields"
_CORE = "nemotron.data_prep.core.chat_sft_shard_core"
_ROW, _PACKED_SHAPES = 8192, ("plain", "system", "reasoning", "tools", "tools and reasoning", "two answers", "long")
Sequence = tuple[list[int], list[int]]
"""Ids, and whether each is trained."""


def plan_like_theirs(template: Path, tokenizer: Path = TOKENIZER) -> ChatPlan:
    """Our plan under `like: nemotron` with a template in a file, encoded by the reference engine."""
    bundle = TokenizerBundle.load(tokenizer)
    refused = refused_outright(bundle, "text", "tokenizers", "a comparison")
    return chat_plan(
        bundle,
        refused,
        ChatTemplate.load(str(template)),
        pack_size=PACK_SIZE,
        bad_rows="drop",
        choices=NEMOTRON,
        sample_rate=0.0,
    )


def compare(folder: Path, tokenizer: Path = TOKENIZER) -> list[Row]:
    """A row for each template and shape. `folder` is a clone of NVIDIA-NeMo/Nemotron, `tokenizer` a tokenizer's."""
    stand_in("cosmos_xenna")
    sys.path.insert(0, str(folder / "src"))
    published = folder / "src" / "nemotron" / "data_prep" / "templates"
    found, decode = [], TokenizerBundle.load(tokenizer).decode
    with tempfile.TemporaryDirectory() as scratch:
        (trap := Path(scratch) / "trap.jinja").write_text(TRAP)
        for template in (*(published / f"{name}.jinja" for name in TEMPLATES), trap):
            plan = plan_like_theirs(template, tokenizer)
            for number, shape in enumerate(SHAPES):
                given, at = rows(shape, PER_SHAPE), Path(scratch) / f"{template.stem} {number}"
                with _reasoning_where_it_is():
                    theirs = list(_theirs(template, tokenizer, given, at / "theirs"))
                ours = list(_ours(plan, given, at / "ours"))
                found.append(_row(f"sft, {template.stem}", shape, given, ours, theirs, decode))
                shutil.rmtree(at)
        for algorithm in _ALGORITHMS:
            at = Path(scratch) / algorithm
            found.append(_packing(published / f"{TEMPLATES[0]}.jinja", tokenizer, at, algorithm))
    return found


@contextlib.contextmanager
def _reasoning_where_it_is() -> Iterator[None]:
    """Chat templates rendered as the transformers below 5 that theirs asks for: no reasoning under another name."""
    newer = getattr(chat_template_utils, _ALIAS, None)
    if newer is not None:
        setattr(chat_template_utils, _ALIAS, lambda chat: chat)
    try:
        yield
    finally:
        if newer is not None:
            setattr(chat_template_utils, _ALIAS, newer)


def _row(
    area: str,
    shape: str,
    given: list[dict[str, Any]],
    ours: list[list[Sequence]],
    theirs: list[list[Sequence]],
    decode: Callable[[Any], str],
) -> Row:
    notes: dict[str, int] = {}
    for row, mine, other in zip(given, ours, theirs, strict=True):
        if mine != other and (why := _explained(row, mine, other, decode)):
            notes[why] = notes.get(why, 0) + 1
    equal = sum(mine == other for mine, other in zip(ours, theirs, strict=True))
    packed = f"{sum(map(bool, ours))} rows packed here, {sum(map(bool, theirs))} there"
    note = "; ".join([packed, *(f"{count}: {why}" for why, count in notes.items())])
    return Row(area, shape, len(ours), equal, sum(notes.values()), note)


def _explained(
    row: dict[str, Any], ours: list[Sequence], theirs: list[Sequence], decode: Callable[[Any], str]
) -> str | None:
    """The choice for which a row differs, of those that docs/formats/packed-sft.md tells, or None."""
    thought = row["messages"][-1]["content"]
    if not ours and theirs and str(thought).startswith("<think>"):
        ids, mask = theirs[-1]
        untrained = decode(ids[: len(mask) - mask[::-1].index(0)])
        beginning = unicodedata.normalize("NFC", thought[: len("<think></think>")])
        if untrained.endswith(f"{START}assistant\n{beginning}"):
            return "`inline_reasoning` is refused; their mask begins within a thought in the text"
    return None


def _ours(plan: ChatPlan, given: list[dict[str, Any]], folder: Path) -> Iterator[list[Sequence]]:
    """The sequences of each row, in order."""
    source = source_of(given, folder)
    shard = Artifact(dataset="parity", name="packed_sft", partition="a")
    spool.spool_source(plan, source, folder, shard)
    at = LocalArtifacts(folder).directory(spool.spool_artifact(shard, 0))
    tokens = np.fromfile(at / spool.TOKENS, np.int32)
    masks = np.fromfile(at / spool.MASKS, np.uint8)
    lengths = np.fromfile(at / spool.LENGTHS, np.uint32).astype(np.int64)
    ends = np.cumsum(lengths)
    origins = np.fromfile(at / spool.ORIGINS, np.int64).reshape(-1, 2)[:, 0]
    made: dict[int, list[Sequence]] = {}
    for row, start, end in zip(origins.tolist(), (ends - lengths).tolist(), ends.tolist(), strict=True):
        made.setdefault(row, []).append((tokens[start:end].tolist(), [0, *masks[start : end - 1].tolist()]))
    yield from (made.get(row, []) for row in range(1, len(given) + 1))


def _theirs(template: Path, tokenizer: Path, given: list[dict[str, Any]], scratch: Path) -> Iterator[list[Sequence]]:
    packing, files = importlib.import_module("nemotron.data_prep.packing.spool"), filesystem("file")
    loaded = AutoTokenizer.from_pretrained(str(tokenizer))
    for number, row in enumerate(given):
        spooled = _their_spool(template, loaded, [row], scratch / str(number))
        reader = packing.SequenceSpoolReader(fs=files, paths=packing.SequenceSpoolPaths.for_root(str(spooled)))
        count = len(reader.load_offsets_and_lengths()[1])
        sequences = [reader.read_sequence(index) for index in range(count)]
        # its first token is nobody's label: the mask that a trainer gets does not hold it
        yield [(ids.tolist(), [0, *mask.tolist()[1:]]) for ids, mask in sequences]


def _their_spool(template: Path, tokenizer: Any, given: list[dict[str, Any]], folder: Path) -> Path:
    """The folder of their spool of these rows."""
    folder.mkdir(parents=True)
    path = str(write_rows(folder / "rows.jsonl", given))
    importlib.import_module(_CORE).process_chat_sft_spool_core(
        shard_index=0,
        files=[{"path": path, "local_path": path, "size": 1}],
        output_dir=str(folder),
        receipts_dir=str(folder / "receipts"),
        spool_dir=str(folder / "spool"),
        output_fs=filesystem("file"),
        tokenizer=tokenizer,
        messages_field="messages",
        tools_field="tools",
        pack_size=PACK_SIZE,
        algorithm="first_fit_shuffle",
        dtype=np.dtype(np.int32),
        chat_template=str(template),
        max_doc_tokens=None,
        max_rows=None,
        seed=42,
        used_in_filter=None,
        used_in_field="used_in",
    )
    return folder / "spool"


def _packing(template: Path, tokenizer: Path, folder: Path, algorithm: Algorithm) -> Row:
    """Packed files of rows that both take, compared in each row of the file and each of its columns."""
    given = [row for shape in _PACKED_SHAPES for row in rows(shape, PER_SHAPE)]
    plan = replace(plan_like_theirs(template, tokenizer), pack_size=_ROW)
    ours = pq.read_table(packed(plan, given, folder / "ours", algorithm)).to_pylist()
    spooled = _their_spool(template, AutoTokenizer.from_pretrained(str(tokenizer)), given, folder / "theirs")
    importlib.import_module(_CORE).process_chat_sft_parquet_from_spool_core(
        shard_index=0,
        output_dir=str(folder),
        spool_dir=str(spooled),
        output_fs=filesystem("file"),
        pack_size=_ROW,
        algorithm=algorithm,
        dtype=np.dtype(np.int32),
        seed=42,
    )
    theirs = pq.read_table(folder / "shard_000000.parquet").to_pylist()
    equal = sum(mine == {name: other[name] for name in mine} for mine, other in zip(ours, theirs, strict=False))
    note = f"{len(given)} conversations; `first_fit_shuffle` shuffles by another generator, so its rows differ"
    return Row("sft, packed rows", algorithm, max(len(ours), len(theirs)), equal, 0, note)
