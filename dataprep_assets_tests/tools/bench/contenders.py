"""What is compared: each contender turns the same `.jsonl.zst` files into one stream of token ids, as its users would.

A contender is a process: `python -m dataprep_assets_tests.tools.bench.contenders SPEC.json`. It writes streams below
`spec.out` and `streams.json`, which says what files of the input each stream holds, in order; whether the ids are right
is decided elsewhere (`verdict`). One setting differs from each tool's default, so that all have the same stream to
make: literal special tokens inside a document are ordinary text.

No import at the top but the standard library: start-up is measured, and each contender pays for its own.
"""

import io
import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

NEXT = Path(__file__).resolve().parents[3] / "build" / "tokenizers-next"
"""The folder in which `make candidate` installs the next `tokenizers`."""
_BLOCK = 4 << 20


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One run of one contender. `files` are indexes into `paths`, including repeats; `tokens[i]` belongs to `paths[i]`.

    `prepared` is only for blends: the folder of a planned blend with verified sources.
    """

    contender: str
    paths: tuple[str, ...]
    files: tuple[int, ...]
    tokens: tuple[int, ...]
    sha256: tuple[str, ...]
    text_field: str
    tokenizer: str
    tokenizer_digest: str
    certificate: dict[str, Any]
    separator: str
    separator_id: int
    dtype: str
    sample_rate: float
    workers: int
    out: str
    prepared: str = ""

    def write(self, path: Path) -> None:
        """Write the spec as JSON, for the contender's process."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> "Spec":
        """Read a written spec."""
        value = json.loads(path.read_text())
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in value.items()})

    def report(self, streams: list[tuple[str, list[int]]]) -> None:
        """Write the list of `(stream, indexes of its files in order)` for the verdict."""
        Path(self.out, "streams.json").write_text(json.dumps(streams))


def _lines(path: str) -> Iterator[str]:
    import zstandard

    with open(path, "rb") as file:
        reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        yield from io.TextIOWrapper(reader, encoding="utf-8")


def _transformers_tokenizer(directory: str) -> Any:
    import transformers

    transformers.logging.set_verbosity_error()
    return transformers.AutoTokenizer.from_pretrained(directory, split_special_tokens=True)


def _processes(spec: Spec, work: Callable[[Spec, int], None]) -> None:
    """Run `work(spec, k)` in one process per core, like a shell loop over `--shard k`."""
    started = [multiprocessing.Process(target=work, args=(spec, k)) for k in range(spec.workers)]
    for process in started:
        process.start()
    for process in started:
        process.join()
    if any(process.exitcode for process in started):
        raise SystemExit("a process failed")


def script(spec: Spec) -> None:
    """(a) Run the research script: line by line, `json.loads`, `tokenizer(text)`, `tofile`; one process per core."""
    _script(spec, _script_part)


def next_script(spec: Spec) -> None:
    """(s) Run the same script with the candidate of the next `tokenizers`, without transformers, which refuses it."""
    _script(spec, _next_script_part)


def _script(spec: Spec, work: Callable[[Spec, int], None]) -> None:
    _processes(spec, work)
    spec.report([(str(Path(spec.out, f"{at}.bin")), [file]) for at, file in enumerate(spec.files)])


def _script_part(spec: Spec, part: int) -> None:
    tokenizer = _transformers_tokenizer(spec.tokenizer)
    _write_lines(spec, part, lambda text: tokenizer(text, add_special_tokens=False)["input_ids"])


def _next_script_part(spec: Spec, part: int) -> None:
    sys.path.insert(0, str(NEXT))
    from tokenizers import Tokenizer

    encode: Any = Tokenizer.from_file(f"{spec.tokenizer}/tokenizer.json").encode
    _write_lines(spec, part, lambda text: encode(text, add_special_tokens=False, encode_special_tokens=True).ids)


def _write_lines(spec: Spec, part: int, ids_of: Callable[[str], list[int]]) -> None:
    import numpy as np

    for at in range(part, len(spec.files), spec.workers):
        with open(Path(spec.out, f"{at}.bin"), "wb") as out:
            for line in _lines(spec.paths[spec.files[at]]):
                ids = ids_of(json.loads(line)[spec.text_field])
                ids.append(spec.separator_id)
                np.asarray(ids, dtype=spec.dtype).tofile(out)


def datatrove(spec: Spec) -> None:
    """(b) Run datatrove: `JsonlReader` and `DocumentTokenizer` with `LocalPipelineExecutor`, a task and a worker per
    core.

    Documents are not shuffled, so that the streams can be compared. Task k processes every `workers`-th file from k.
    """
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader

    from dataprep_assets_tests.tools.bench.datatrove_tokenizer import LiteralDocumentTokenizer

    paths = [spec.paths[file] for file in spec.files]
    folder = os.path.commonpath([os.path.dirname(path) for path in paths])
    listing = Path(spec.out, "paths.txt")
    listing.write_text("".join(os.path.relpath(path, folder) + "\n" for path in paths))
    tasks = min(spec.workers, len(paths))
    LocalPipelineExecutor(
        pipeline=[
            JsonlReader(folder, paths_file=str(listing), text_key=spec.text_field),
            LiteralDocumentTokenizer(
                output_folder=str(Path(spec.out, "tokens")),
                eos_token=spec.separator,
                shuffle_documents=False,
                tokenizer_name_or_path=str(Path(spec.tokenizer, "tokenizer.json")),
            ),
        ],
        tasks=tasks,
        workers=tasks,
        logging_dir=str(Path(spec.out, "logs")),
    ).run()
    streams = []
    for rank in range(tasks):
        (found,) = Path(spec.out, "tokens").glob(f"{rank:05d}_*.ds")
        streams.append((str(found), list(spec.files[rank::tasks])))
    spec.report(streams)


_megatron: dict[str, Any] = {}


def _megatron_initializer(directory: str, field: str, separator_id: int) -> None:
    _megatron.update(tokenizer=_transformers_tokenizer(directory), field=field, separator_id=separator_id)


def _megatron_encode(line: str) -> tuple[list[int], int]:
    text = json.loads(line)[_megatron["field"]]
    ids: list[int] = _megatron["tokenizer"](text, add_special_tokens=False).input_ids
    ids.append(_megatron["separator_id"])
    return ids, len(line)


def megatron(spec: Spec) -> None:
    """(c) Run Megatron's classic pattern (`tools/preprocess_data.py`): a pool over lines, 32 per chunk; the parent
    writes.
    """
    import numpy as np

    lengths: list[int] = []
    target = str(Path(spec.out, "text_document.bin"))
    lines = (line for file in spec.files for line in _lines(spec.paths[file]))
    arguments = (spec.tokenizer, spec.text_field, spec.separator_id)
    pool = multiprocessing.Pool(spec.workers, initializer=_megatron_initializer, initargs=arguments)
    with open(target, "wb") as out:
        for ids, _ in pool.imap(_megatron_encode, lines, 32):
            out.write(np.array(ids, dtype=spec.dtype).tobytes(order="C"))
            lengths.append(len(ids))
    pool.close()
    pool.join()
    np.array(lengths, np.int32).tofile(Path(spec.out, "text_document.idx"))
    spec.report([(target, list(spec.files))])


def next_reference(spec: Spec) -> None:
    """(n) Run the candidate of the next `tokenizers`: blocks of documents, arrays of ids; a process per core."""
    _processes(spec, _next_part)
    spec.report([(str(Path(spec.out, f"{at}.bin")), [file]) for at, file in enumerate(spec.files)])


def _next_part(spec: Spec, part: int) -> None:
    sys.path.insert(0, str(NEXT))
    import numpy as np
    import orjson
    from tokenizers import Tokenizer

    encode = Tokenizer.from_file(f"{spec.tokenizer}/tokenizer.json").encode_batch
    separator = np.array([spec.separator_id], spec.dtype)
    for at in range(part, len(spec.files), spec.workers):
        with open(Path(spec.out, f"{at}.bin"), "wb", buffering=0) as out:
            for lines in _blocks_of_lines(spec.paths[spec.files[at]]):
                texts = [orjson.loads(line)[spec.text_field] for line in lines]
                found = encode(texts, add_special_tokens=False, encode_special_tokens=True)
                arrays = [part for one in found for part in (one.ids_array, separator)]
                out.write(np.concatenate(arrays, dtype=spec.dtype, casting="unsafe").data)


def bare_fastokens(spec: Spec) -> None:
    """(k) Run only `fastokens`: blocks of documents, orjson, flat ids; no digest, ledger or check; a process
    per core.
    """
    _processes(spec, _bare_fastokens_part)
    spec.report([(str(Path(spec.out, f"{at}.bin")), [file]) for at, file in enumerate(spec.files)])


def _bare_fastokens_part(spec: Spec, part: int) -> None:
    os.environ["FASTOKENS_BPE_THREADS"] = "1"
    import numpy as np
    import orjson

    from dataprep_assets.tokenization.bundle import TokenizerBundle
    from dataprep_assets.tokenization.engines import FastokensEngine

    encode = FastokensEngine(TokenizerBundle.load(Path(spec.tokenizer)), "text").encode
    for at in range(part, len(spec.files), spec.workers):
        with open(Path(spec.out, f"{at}.bin"), "wb", buffering=0) as out:
            for lines in _blocks_of_lines(spec.paths[spec.files[at]]):
                ids, offsets = encode([orjson.loads(line)[spec.text_field] for line in lines])
                # Add a separator after each document.
                flat = np.full(len(ids) + len(lines), spec.separator_id, spec.dtype)
                kept = np.ones(len(flat), np.bool_)
                kept[offsets[1:].astype(np.int64) + np.arange(len(lines))] = False
                flat[kept] = ids
                out.write(flat.data)


def _blocks_of_lines(path: str) -> Iterator[list[bytes]]:
    import zstandard

    tail = b""
    with open(path, "rb") as source:
        reader = zstandard.ZstdDecompressor().stream_reader(source, read_across_frames=True)
        while data := reader.read(_BLOCK):
            lines = (tail + data).split(b"\n")
            tail = lines.pop()
            yield lines
    if tail.strip():
        yield [tail]


def floor(spec: Spec) -> None:
    """Run the floor: decompress, parse, write as many bytes as the tokens would need, without tokenizing; a process per
    core.
    """
    _floor(spec, _floor_part)


def bare_floor(spec: Spec) -> None:
    """Run the floor with simdjson, which creates only the text of a record."""
    _floor(spec, _bare_floor_part)


def _floor(spec: Spec, work: Callable[[Spec, int], None]) -> None:
    _processes(spec, work)
    spec.report([(str(Path(spec.out, f"{at}.bin")), [file]) for at, file in enumerate(spec.files)])


def _floor_part(spec: Spec, part: int) -> None:
    import orjson

    _write_nothing(spec, part, orjson.loads)


def _bare_floor_part(spec: Spec, part: int) -> None:
    import simdjson

    _write_nothing(spec, part, simdjson.Parser().parse)


def _write_nothing(spec: Spec, part: int, parse: Callable[[bytes], Any]) -> None:
    width = {"uint16": 2, "uint32": 4}[spec.dtype]
    zeros = bytes(_BLOCK)
    for at in range(part, len(spec.files), spec.workers):
        file = spec.files[at]
        with open(Path(spec.out, f"{at}.bin"), "wb", buffering=0) as out:
            left = spec.tokens[file] * width
            for lines in _blocks_of_lines(spec.paths[file]):
                texts = [parse(line)[spec.text_field] for line in lines]
                del texts
                left -= out.write(zeros[: min(left, _BLOCK)])
            while left > 0:
                left -= out.write(zeros[: min(left, _BLOCK)])


def ours(spec: Spec) -> None:
    """(d) Run this project: `build_token_bins` into a new root, with digests, ledger, receipts, sampling and syncs."""
    from dataprep_assets.integrity.artifacts import Artifact, LocalArtifacts
    from dataprep_assets.stream.shard_job import build_token_bins
    from dataprep_assets.stream.token_shard import TokenShard
    from dataprep_assets.stream.token_stream import SourcePart, StreamPlan

    plan = StreamPlan(
        tokenizer=Path(spec.tokenizer),
        tokenizer_digest=spec.tokenizer_digest,
        certificate=spec.certificate,
        special_tokens="text",
        separator_id=spec.separator_id,
        bos_id=None,
        dtype=spec.dtype,
        text_field=spec.text_field,
        bad_records="fail",
        sample_rate=spec.sample_rate,
    )
    parts = [
        SourcePart(
            label=f"{at:05d}/{Path(spec.paths[file]).name}",
            path=Path(spec.paths[file]),
            format="jsonl",
            compression="zstd",
            sha256=spec.sha256[file],
            ordinal=at,
        )
        for at, file in enumerate(spec.files)
    ]
    a_shard = 6
    works = [
        TokenShard(
            artifact=Artifact(dataset="bench", name="token_bins", partition=f"train-{at:05d}"),
            store=LocalArtifacts(Path(spec.out)),
            files=tuple(parts[at : at + a_shard]),
            plan=plan,
            budget=0,
            sizes=tuple(part.path.stat().st_size for part in parts[at : at + a_shard]),
        )
        for at in range(0, len(parts), a_shard)
    ]
    tokens, files = dict[int, int](), {part.label: spec.files[part.ordinal] for part in parts}
    for result in build_token_bins(works, workers=spec.workers):
        if result.error is not None:
            raise result.error
        assert result.receipt is not None
        tokens |= {files[source["file"]]: source["tokens"] for source in result.receipt.sources}
    Path(spec.out, "tokens.json").write_text(json.dumps([tokens[file] for file in sorted(tokens)]))
    spec.report(
        [(str(work.directory / "tokens.bin"), [spec.files[part.ordinal] for part in work.files]) for work in works]
    )


def reference(spec: Spec) -> None:
    """(r) Run this project with the installed `tokenizers` as the engine; if it is as fast, no other engine is
    needed.
    """
    from dataprep_assets.tokenization.bundle import TokenizerBundle
    from dataprep_assets.tokenization.certificate import refuse_engine

    refused = refuse_engine(TokenizerBundle.load(Path(spec.tokenizer)), "text", "tokenizers", "it is measured")
    ours(replace(spec, certificate=refused.to_json()))


def blend(spec: Spec) -> None:
    """Build the shards of a pretraining blend: the work of (d), and Megatron's index of every shard."""
    import shutil

    from dataprep_assets.integrity.artifacts import LocalArtifacts
    from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
    from dataprep_assets.pipelines.blend.indexed_bins import prepare_indexed_bins_shards
    from dataprep_assets.pipelines.blend.plan.plan import load_blend_plan
    from dataprep_assets.stream.shard_job import build_token_bins

    root = Path(shutil.copytree(Path(spec.prepared, "artifacts"), Path(spec.out, "artifacts")))
    declared = BlendDeclaration.model_validate_json(Path(spec.prepared, "blend.json").read_bytes())
    store = LocalArtifacts(root)
    plan = load_blend_plan(declared, store)
    works = {work.partition: work for work in prepare_indexed_bins_shards(declared, store, plan, plan.partitions)}
    streams = []
    for result in build_token_bins(list(works.values()), workers=spec.workers, verification=declared.verify):
        if result.error is not None:
            raise result.error
        assert result.receipt is not None
        files = [int(Path(source["file"]).name.split("-")[1]) for source in result.receipt.sources]
        streams.append((str(works[result.partition].directory / "tokens.bin"), files))
    spec.report(streams)


CONTENDERS: dict[str, Callable[[Spec], None]] = {
    "a": script,
    "b": datatrove,
    "c": megatron,
    "d": ours,
    "e": blend,
    "f": blend,
    "r": reference,
    "s": next_script,
    "n": next_reference,
    "k": bare_fastokens,
    "floor": floor,
    "bare": bare_floor,
}


def main(path: Path) -> None:
    """Run the contender of a spec."""
    spec = Spec.read(path)
    CONTENDERS[spec.contender](spec)


if __name__ == "__main__":
    # Import the module by its real name, so that pickles of its functions work in every process.
    from dataprep_assets_tests.tools.bench import contenders

    contenders.main(Path(sys.argv[1]))
