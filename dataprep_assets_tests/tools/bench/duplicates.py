"""Duplicates against others: `python -m dataprep_assets_tests.tools.bench.duplicates --documents 100000`.

The same invented documents for each: pages of 50 to 400 words, near-duplicates of them at known rates of edited words,
and copies. Printed for each contender: documents kept; those that went although no kept one is as alike as the
threshold; whether other texts are kept when the files come in another order; the share of the pairs of a page and its
edited version, with a similarity of at least 0.8, of which one goes; CPU and wall seconds, peak memory. Of ours also
what 1 % appended costs.

datasketch is its `MinHashLSH` with our bands, documents asked one after the other; datatrove its four MinHash steps,
with words split at white space in place of its tokenizer, which needs spaCy, and encoded, as newer versions of xxhash
want it; numbers are told apart, because those words differ in them. Neither verifies a pair: two documents that share
a band are taken for alike. A contender that is not installed is left out.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from dataprep_assets.curation.duplicates.banding import choose_banding
from dataprep_assets.curation.duplicates.candidates import CandidateSet
from dataprep_assets.curation.duplicates.kept_set import (
    ComparedPairs,
    DuplicateDecisions,
    Priority,
    ShardOrder,
    choose_kept_documents,
)
from dataprep_assets.curation.duplicates.signatures import SignatureSettings, SignatureWriter, SignedShard
from dataprep_assets_tests.tools.bench.runner import CommandFailedError, Measurement, measure

THRESHOLD, PERMUTATIONS, SHINGLE, SHARDS = 0.8, 128, 5, 10
BANDING = choose_banding(THRESHOLD, PERMUTATIONS)
SETTINGS = SignatureSettings(kind="near", normalization="words", shingle=SHINGLE, banding=BANDING)
RATES = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16)


def invented(documents: int, seed: int) -> Iterator[tuple[int, float, str]]:
    """Return documents: the page of each, the share of its words that were edited, and its text."""
    draw = random.Random(seed)
    words = [f"{draw.choice('bcdfglmnprst')}{draw.choice('aeiou')}{number:x}" for number in range(30_000)]
    made = page = 0
    while made < documents:
        text = draw.choices(words, k=draw.randint(50, 400))
        yield page, 0.0, " ".join(text)
        made += 1
        for _ in range(draw.choice((0, 0, 0, 1, 1, 2))):
            if made == documents:
                break
            rate = draw.choice((0.0, *RATES))
            yield page, rate, " ".join(draw.choice(words) if draw.random() < rate else word for word in text)
            made += 1
        page += 1


def shards(folder: Path) -> Iterator[list[dict[str, Any]]]:
    """Return the documents of a folder, shard by shard."""
    for path in sorted(folder.glob("*.jsonl")):
        with path.open() as lines:
            yield [json.loads(line) for line in lines]


def ours(folder: Path, work: Path, *, appended: bool = False) -> Sequence[int]:
    """Return the numbers of the kept documents; with `appended` the last shard is added after the others."""
    numbers, made = list[int](), []
    for path in sorted(folder.glob("*.jsonl")):
        target = work / path.stem
        if not target.exists():
            _sign(path, target)
        here = json.loads((target / "numbers.json").read_text())
        numbers += here
        made.append(SignedShard(target, len(here), len(here), BANDING.bands))
    started = time.process_time()
    found = _joined(made, _known(work) if appended else None, appended)
    (work / "pairs.bin").write_bytes(found.compared.pairs.tobytes())
    size = sum(file.stat().st_size for one in made for file in one.directory.glob("*.bin"))
    (work / "joined.json").write_text(json.dumps([time.process_time() - started, size]))
    removed = set(found.removed.tolist())
    return [number for at, number in enumerate(numbers) if at not in removed]


def _sign(path: Path, target: Path) -> None:
    """Return the signatures of a file, and the numbers of its documents."""
    target.mkdir(parents=True)
    numbers = []
    with path.open() as lines, SignatureWriter(target, SETTINGS) as writer:
        while part := [json.loads(line) for line in islice(lines, 1000)]:
            numbers += [one["number"] for one in part]
            writer.add(len(part), range(len(part)), [one["text"] for one in part])
    (target / "numbers.json").write_text(json.dumps(numbers))


def _known(work: Path) -> ComparedPairs:
    return ComparedPairs(np.frombuffer((work / "pairs.bin").read_bytes(), np.uint64).reshape(-1, 4))


def _joined(made: Sequence[SignedShard], known: ComparedPairs | None, appended: bool) -> DuplicateDecisions:
    documents = CandidateSet(made, [np.ones(one.rows, np.bool_) for one in made])
    zero = np.zeros(1, np.int64)
    orders = [
        ShardOrder(split=0, starts=zero, files=zero + at, ages=zero + (appended and at == len(made) - 1))
        for at in range(len(made))
    ]
    priority = Priority(documents=documents, shards=orders, by_split=False)
    return choose_kept_documents(documents, priority, threshold=THRESHOLD, across="ignore", known_pairs=known)


def with_datasketch(folder: Path, _: Path) -> Sequence[int]:
    """Deduplicate like `ours`, by querying each document against those before it."""
    from datasketch import MinHash, MinHashLSH

    lsh = MinHashLSH(num_perm=BANDING.bands * BANDING.rows, params=(BANDING.bands, BANDING.rows))
    kept = []
    for rows in shards(folder):
        for one in rows:
            words = one["text"].split()
            signature = MinHash(num_perm=BANDING.bands * BANDING.rows)
            signature.update_batch(
                [" ".join(words[at : at + SHINGLE]).encode() for at in range(max(1, len(words) - SHINGLE + 1))]
            )
            if not lsh.query(signature):
                lsh.insert(one["number"], signature)
                kept.append(one["number"])
    return kept


class _Words:
    """A tokenizer that splits words at white space, for datatrove."""

    def word_tokenize(self, text: str) -> list[str]:
        return text.split()


def with_datatrove(folder: Path, work: Path) -> Sequence[int]:
    """Deduplicate like `ours`, with datatrove's four steps."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.dedup import minhash
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers import JsonlWriter
    from datatrove.utils.text import TextNormConfig

    minhash.load_word_tokenizer = lambda _: _Words()

    def hashes(_: object) -> Callable[[str], int]:
        return lambda shingle: xxhash.xxh64_intdigest(shingle.encode())

    minhash.create_hash_func = hashes
    # Do not normalize numbers, because the invented words differ only in their digits.
    config = minhash.MinhashConfig(
        n_grams=SHINGLE,
        num_buckets=BANDING.bands,
        hashes_per_bucket=BANDING.rows,
        norm_config=TextNormConfig(norm_numbers=False),
    )
    places = {name: str(work / name) for name in ("signatures", "buckets", "remove", "kept")}
    reader = JsonlReader(str(folder), glob_pattern="*.jsonl")
    steps = [
        ([reader, minhash.MinhashDedupSignature(places["signatures"], config=config)], SHARDS),
        ([minhash.MinhashDedupBuckets(places["signatures"], places["buckets"], config=config)], BANDING.bands),
        ([minhash.MinhashDedupCluster(places["buckets"], places["remove"], config=config)], 1),
        (
            [reader, minhash.MinhashDedupFilter(places["remove"]), JsonlWriter(places["kept"], compression=None)],
            SHARDS,
        ),
    ]
    for number, (pipeline, tasks) in enumerate(steps):
        LocalPipelineExecutor(pipeline, tasks=tasks, workers=1, logging_dir=str(work / f"log{number}")).run()
    return [
        int(json.loads(line)["id"].removeprefix("document"))
        for path in sorted((work / "kept").glob("*"))
        for line in path.read_text().splitlines()
    ]


CONTENDERS: Mapping[str, Callable[[Path, Path], Sequence[int]]] = {
    "ours": ours,
    "datasketch": with_datasketch,
    "datatrove": with_datatrove,
}


def write(folder: Path, documents: Sequence[tuple[int, str]], seed: int) -> None:
    """Write the documents in shards, in an order by a seed."""
    folder.mkdir(parents=True)
    order = random.Random(seed).sample(documents, len(documents))
    for shard in range(SHARDS):
        rows = order[shard::SHARDS]
        # datatrove treats an id of zero as missing.
        lines = (json.dumps({"id": f"document{n}", "number": n, "text": text}) + "\n" for n, text in rows)
        (folder / f"{shard}.jsonl").write_text("".join(lines))


def judged(documents: Sequence[tuple[int, float, str]], kept: set[int]) -> tuple[dict[float, float], int]:
    """Return rate of edits → the share of its similar pairs from which one document was dropped, and the number of
    documents that were dropped without a similar kept one of their page. Different pages are never similar.
    """
    pairs, wrong = dict[float, list[bool]](), 0
    # Compare page by page, because the shingles of all pages would take gigabytes.
    for _, group in groupby(enumerate(documents), key=lambda one: one[1][0]):
        alone = list(group)
        if len(alone) == 1:
            wrong += alone[0][0] not in kept
            continue
        members = [(number, rate, _shingles(text)) for number, (_, rate, text) in alone]
        first, _, original = members[0]
        for number, rate, shingles in members[1:]:
            if _alike(shingles, original):
                pairs.setdefault(rate, []).append(not {first, number} <= kept)
        stay = [shingles for number, _, shingles in members if number in kept]
        wrong += sum(n not in kept and not any(_alike(shingles, one) for one in stay) for n, _, shingles in members)
    return {rate: sum(found) / len(found) for rate, found in sorted(pairs.items())}, wrong


def _shingles(text: str) -> set[str]:
    words = text.split()
    return {" ".join(words[at : at + SHINGLE]) for at in range(len(words) - SHINGLE + 1)}


def _alike(one: set[str], other: set[str]) -> bool:
    return len(one & other) >= THRESHOLD * len(one | other)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--documents", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=CONTENDERS, action="append", help="a contender; default: all")
    parser.add_argument("--orders", type=int, choices=(1, 2), default=2, help="of the files; 1 takes half the time")
    parser.add_argument("--one", nargs=4, metavar=("NAME", "FOLDER", "WORK", "RESULT"), help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.one:
        name, folder, work, result = asked.one
        appended = name == "appended"
        kept = ours(Path(folder), Path(work), appended=True) if appended else CONTENDERS[name](Path(folder), Path(work))
        Path(result).write_text(json.dumps(sorted(kept)))
        return 0
    documents = list(invented(asked.documents, asked.seed))
    texts = [(number, text) for number, (_, _, text) in enumerate(documents)]
    size = sum(len(text) for _, text in texts)
    print(f"{len(texts):,} documents, {size / 1e6:,.0f} MB of text, {BANDING.bands} bands of {BANDING.rows}")
    failed = 0
    with tempfile.TemporaryDirectory(prefix="dataprep-bench-duplicates-") as scratch:
        root = Path(scratch)
        for order in range(1, asked.orders + 1):
            write(root / f"order{order}", texts, order)
        for name in asked.only or CONTENDERS:
            took = _print_of(name, root, documents, asked.orders)
            failed += took is None
            if name == "ours" and took is not None:
                _print_append(root, texts, took.cpu)
    return int(failed > 0 and bool(asked.only))


def _print_of(name: str, root: Path, documents: Sequence[tuple[int, float, str]], orders: int) -> Measurement | None:
    """Measure a contender with one or two orders of the files; return the cost of the first, None if it failed."""
    kept = []
    for order in range(1, orders + 1):
        result = root / f"{name}{order}.json"
        work = root / f"{name}-work{order}"
        line = ["--one", name, str(root / f"order{order}"), str(work), str(result)]
        try:
            took = measure([sys.executable, "-m", "dataprep_assets_tests.tools.bench.duplicates", *line])
        except CommandFailedError as error:
            print(f"{name:<11} left out: {str(error).splitlines()[-1]}", flush=True)
            return None
        kept.append(json.loads(result.read_text()))
        if order == 1:
            first = took
    found, wrong = judged(documents, set(kept[0]))
    texts = [Counter(documents[number][2] for number in one) for one in kept]
    other = ((texts[0] - texts[-1]) + (texts[-1] - texts[0])).total()
    in_another = f" in another order {f'{other:,} others' if other else 'the same'};" if orders > 1 else ""
    print(
        f"{name:<11} kept {len(kept[0]):,}; {wrong:,} went wrongly;{in_another}"
        + f" {first.wall:,.1f} s wall, {first.cpu:,.1f} s CPU,"
        f"  {first.peak_rss / 1e6:,.0f} MB\n{'':<11} recall by edited words: "
        + ", ".join(f"{rate:.1%} {share:.2%}" for rate, share in found.items()),
        flush=True,
    )
    return first


def _print_append(root: Path, texts: Sequence[tuple[int, str]], whole: float) -> None:
    """Measure the cost of 1 % more documents: a further shard, with the existing signatures and pairs."""
    folder, work = root / "order1", root / "ours-work1"
    cpu, size = json.loads((work / "joined.json").read_text())
    print(f"{'':<11} {size / len(texts):,.0f} bytes of signatures a document; {cpu:,.1f} s CPU of it joins them")
    some = random.Random(3).sample(texts, max(1, len(texts) // 100))
    rows = [{"number": len(texts) + at, "text": f"{text} appended"} for at, (_, text) in enumerate(some)]
    (folder / "a.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    line = ["--one", "appended", str(folder), str(work), str(root / "appended.json")]
    took = measure([sys.executable, "-m", "dataprep_assets_tests.tools.bench.duplicates", *line])
    (folder / "a.jsonl").unlink()  # so that the other contenders read the same documents as before
    cost = f"{took.wall:,.1f} s wall, {took.cpu:,.1f} s CPU, {took.cpu / whole:.1%} of the first"
    print(f"{'':<11} {len(rows):,} appended: {cost}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
