"""Upload and download of one file: this project's store against boto3's transfer manager, obstore and s3fs, on Swift.

    python -m dataprep_assets_tests.tools.bench.transfers [MiB]      (default 1024)

All use the same server, file and machine, one after the other in each of three rounds; medians are compared. Ours
verifies every byte and syncs the file to disk, the others do what they do by default. Each runs in a process of its
own; memory is that process's peak. A package that cannot be imported is left out; DATAPREP_BENCH_PYTHON names another
interpreter for s3fs, whose aiobotocore cannot share an environment with a current boto3.
"""

import hashlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dataprep_assets_tests.fakes.swift_server import KEY_ID, SECRET, run_swift_server

ROUNDS = 3
BUCKET = "transfers"

_SETUP = """
import os, resource, sys, time, json
contender, way, url, path, digest = sys.argv[1:]
key_id, secret, bucket = os.environ["BENCH_KEY"], os.environ["BENCH_SECRET"], os.environ["BENCH_BUCKET"]
"""

_OURS = """
from pathlib import Path
from dataprep_assets.stores.amazon.s3 import S3Store
from dataprep_assets_tests.fakes.buckets import new_client
store = S3Store(new_client(url), bucket)
store.head("nothing")
def up(): store.upload(Path(path), contender, sha256=digest)
def down(): store.download(contender, Path(path + ".down"), sha256=digest)
"""

_BOTO = """
import boto3
from boto3.s3.transfer import TransferConfig
client = boto3.client("s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id=key_id,
                      aws_secret_access_key=secret)
client.list_buckets()
config = TransferConfig(**SETTINGS)
def up(): client.upload_file(path, bucket, contender, Config=config)
def down(): client.download_file(bucket, contender, path + ".down", Config=config)
"""

_OBSTORE = """
import obstore
from obstore.store import S3Store
store = S3Store(bucket, endpoint=url, region="us-east-1", access_key_id=key_id, secret_access_key=secret,
                virtual_hosted_style_request=False, client_options={"allow_http": True, "timeout": "600s"})
def up():
    with open(path, "rb") as stream:
        obstore.put(store, contender, stream)
def down():
    with open(path + ".down", "wb") as stream:
        for block in obstore.get(store, contender).stream(min_chunk_size=1 << 20):
            stream.write(block)
"""

_S3FS = """
import s3fs
fs = s3fs.S3FileSystem(key=key_id, secret=secret, endpoint_url=url, client_kwargs={"region_name": "us-east-1"})
def up(): fs.put_file(path, f"{bucket}/{contender}")
def down(): fs.get_file(f"{bucket}/{contender}", path + ".down")
"""

_MEASURE = """
begin = time.perf_counter()
(up if way == "up" else down)()
seconds = time.perf_counter() - begin
print(json.dumps({"seconds": seconds, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""

CONTENDERS = {
    "ours": _OURS,
    "boto3": _BOTO.replace("**SETTINGS", ""),
    "boto3 tuned": _BOTO.replace(
        "**SETTINGS", "multipart_chunksize=16 << 20, max_concurrency=16, multipart_threshold=16 << 20"
    ),
    "obstore": _OBSTORE,
    "s3fs": _S3FS,
}


def main(arguments: Sequence[str]) -> None:
    """Print medians in seconds, ratios to ours and peaks in MB."""
    size = int(arguments[0]) * 1024 * 1024 if arguments else 1024 * 1024 * 1024
    with tempfile.TemporaryDirectory() as folder, run_swift_server(Path(folder) / "swift") as server:
        path = Path(folder) / "file"
        digest = _write(path, size)
        _make_bucket(server.url)
        results: dict[tuple[str, str], list[dict[str, float]]] = {}
        contenders = [name for name in CONTENDERS if _can_run(name, server.url, path)]
        for _ in range(ROUNDS):
            for way in ("up", "down"):
                for name in contenders:
                    results.setdefault((name, way), []).append(_run(name, way, server.url, path, digest))
                    if way == "down":
                        _check(path.with_name("file.down"), digest)
    for way in ("up", "down"):
        ours = statistics.median(result["seconds"] for result in results["ours", way])
        for name in contenders:
            runs = results[name, way]
            median = statistics.median(run["seconds"] for run in runs)
            peak = max(run["peak_mb"] for run in runs)
            speed = size / 1024 / 1024 / median
            print(f"{way:5} {name:12} {median:7.2f} s {speed:6.0f} MiB/s  x{median / ours:.2f}  {peak:5.0f} MB")


def _write(path: Path, size: int) -> str:
    source, digest = random.Random(0), hashlib.sha256()
    with path.open("wb") as stream:
        for _ in range(0, size, 1 << 20):
            block = source.randbytes(1 << 20)
            digest.update(block)
            stream.write(block)
    return digest.hexdigest()


def _make_bucket(url: str) -> None:
    from dataprep_assets_tests.fakes.buckets import new_client

    new_client(url).create_bucket(Bucket=BUCKET)


def _can_run(name: str, url: str, path: Path) -> bool:
    program = _SETUP + CONTENDERS[name]
    done = subprocess.run(_command(name, program, "none", url, path, ""), env=_environment(), capture_output=True)
    if done.returncode:
        print(f"{name}: left out: {done.stderr.decode().strip().splitlines()[-1:]}")
    return not done.returncode


def _run(name: str, way: str, url: str, path: Path, digest: str) -> dict[str, float]:
    program = _SETUP + CONTENDERS[name] + _MEASURE
    done = subprocess.run(
        _command(name, program, way, url, path, digest), env=_environment(), capture_output=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{name} {way}: {done.stderr.decode()[-2000:]}")
    result: dict[str, float] = json.loads(done.stdout)
    return result


def _command(name: str, program: str, way: str, url: str, path: Path, digest: str) -> list[str]:
    other = os.environ.get("DATAPREP_BENCH_PYTHON")
    python = other if name == "s3fs" and other else sys.executable
    return [python, "-c", program, name.replace(" ", "-"), way, url, str(path), digest]


def _environment() -> dict[str, str]:
    return {**os.environ, "BENCH_KEY": KEY_ID, "BENCH_SECRET": SECRET, "BENCH_BUCKET": BUCKET}


def _check(path: Path, digest: str) -> None:
    with path.open("rb") as stream:
        if hashlib.file_digest(stream, "sha256").hexdigest() != digest:
            raise RuntimeError(f"{path}: wrong bytes")
    path.unlink()


if __name__ == "__main__":
    main(sys.argv[1:])
