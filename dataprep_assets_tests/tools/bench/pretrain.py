"""`python -m dataprep_assets_tests.tools.bench.pretrain`: a pretraining blend, the corpus pipeline and the usual tools.

The targets are those of the corpus pipeline, with the same method (`comparison`): the same files, the same ids or it is
an error, fresh processes into fresh folders, interleaved, start-up taken off. The blend is read from the very JSON
lines (e) and from the same documents as Parquet (f); planning it, verifying its sources and the engine certificate come
before the clock, as the manifest does for (d). Digests, ledger, receipts, sampling, syncs and Megatron's index are on.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from dataprep_assets_tests.tools.bench import table
from dataprep_assets_tests.tools.bench.__main__ import CORPUS, TOKENIZER
from dataprep_assets_tests.tools.bench.comparison import BLENDS, NAMES, Comparison, add_arguments, compare
from dataprep_assets_tests.tools.bench.contenders import Spec

_CONTENDERS = "a,b,c,d,e,f,floor"
_FILES_A_SHARD = 6
OF_FLOOR = {"e": 0.45, "f": 0.6}
"""The targets relative to the floor's rate, per CPU-second and by wall time: for JSON lines, and for Parquet."""


class PretrainComparison(Comparison):
    """A comparison with prepared blends, one per contender and input."""

    @cached_property
    def _done(self) -> dict[tuple[Any, ...], Path]:
        return {}

    def spec_of(self, name: str, spec: Spec) -> Spec:
        if name not in BLENDS:
            return spec
        key = (name, spec.paths, spec.files)
        if key not in self._done:
            self._done[key] = _prepared(self._scratch, name, spec)
        return replace(spec, prepared=str(self._done[key]))


def _prepared(scratch: Path, name: str, spec: Spec) -> Path:
    """Return a planned blend of a spec's files with snapshots and certificate: `blend.json` and `artifacts`."""
    from dataprep_assets.integrity.artifacts import LocalArtifacts
    from dataprep_assets.pipelines.blend.blend_sample import build_blend_engine
    from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
    from dataprep_assets.pipelines.blend.plan.blend_plan import build_blend_plan
    from dataprep_assets.pipelines.blend.plan.blend_snapshot import build_blend_snapshot
    from dataprep_assets.pipelines.blend.plan.plan import load_blend_plan
    from dataprep_assets.stream.engine_certificate import ensure_certificate

    folder = Path(tempfile.mkdtemp(prefix=f"prepared-{name}-", dir=scratch))
    data = folder / "data"
    data.mkdir()
    for at, file in enumerate(spec.files):
        source = Path(spec.paths[file])
        if name == "f":
            source = _as_parquet(source, scratch / "parquet")
        # Copy the file, because a source does not follow links to files outside of its folder.
        shutil.copyfile(source, data / f"{at:06d}-{file:06d}-{source.name}")
    blend = BlendDeclaration.model_validate(
        {
            "dataset": "bench",
            "stage": "pretrain",
            "blend": {"datasets": [{"name": "corpus", "path": str(data), "text_field": spec.text_field}]},
            "tokenizer": {"path": spec.tokenizer},
            "pretrain": {"separator": spec.separator, "sample_rate": spec.sample_rate},
            "num_shards": -(-len(spec.files) // _FILES_A_SHARD),
        }
    )
    (folder / "blend.json").write_text(blend.model_dump_json())
    store = LocalArtifacts(folder / "artifacts")
    build_blend_plan(blend, store)
    plan = load_blend_plan(blend, store)
    for partition in plan.partitions:
        build_blend_snapshot(blend, store, plan, partition)
    kept, certificate = scratch / "engine_certificate", store.directory(blend.artifact("engine_certificate"))
    if kept.exists():  # reuse the certificate, because the tokenizer is the same
        shutil.copytree(kept, certificate)
    else:
        ensure_certificate(build_blend_engine(blend), store)
        shutil.copytree(certificate, kept)
    return folder


def _as_parquet(source: Path, folder: Path) -> Path:
    """Convert a file of JSON lines to Parquet, once."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from dataprep_assets_tests.tools.bench.contenders import _lines

    target = folder / f"{source.parent.name}-{source.name.removesuffix('.jsonl.zst')}.parquet"
    if not target.exists():
        folder.mkdir(exist_ok=True)
        texts = [json.loads(line)["text"] for line in _lines(str(source))]
        pq.write_table(pa.table({"text": texts}), target, compression="zstd", row_group_size=10_000)
    return target


def targets(results: Any) -> list[tuple[str, float | None, bool | None]]:
    """Return the corpus pipeline's targets for both blends, and the ratio of each rate to the corpus pipeline's."""
    found = []
    for name in sorted(BLENDS):
        if name in results:
            found += [
                (f"{NAMES[name]}: {text}", *rest)
                for text, *rest in table.targets(results, name, of_floor=OF_FLOOR[name])
            ]
            over = table.ratios(results, name).get("d", {})
            found += [(f"{NAMES[name]}: over (d), {kind}", over.get(kind), None) for kind in ("cpu", "wall")]
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its figures; return 1 if a contender's ids are wrong."""
    parser = argparse.ArgumentParser(prog="python -m dataprep_assets_tests.tools.bench.pretrain", description=__doc__)
    add_arguments(parser, _CONTENDERS)
    parser.set_defaults(data=CORPUS, tokenizer=TOKENIZER, only="a,c,d,e,f,floor")
    arguments = parser.parse_args(argv)
    compared = compare(arguments, _CONTENDERS, PretrainComparison)
    results = compared.results
    print(table.render(compared.facts(), results, arguments.runs))
    said = {True: "met", False: "NOT MET", None: ""}
    print("The blends:")
    for text, value, met in targets(results):
        print(f"  {text}: {'not measured' if value is None else f'{value:,.2f} {said[met]}'}")
    if arguments.json:
        arguments.json.write_text(
            json.dumps(
                table.as_json(compared.facts(), results, arguments.runs) | {"blends": targets(results)}, indent=1
            )
        )
    return int(any(result.faults for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
