"""A real S3 server for the tests: OpenStack Swift behind its s3api, four processes on loopback, in its own folder.

Swift is independent of this project, verifies signatures and digests, and lists, resumes and completes uploads by its
own rules. Measured with swift 2.38: ready in about 3 s, 250 MB of memory. It needs user extended attributes on the file
system.

Supported: ListParts, ListMultipartUploads, UploadPartCopy with a range and `x-amz-copy-source-if-match`, parts of at
least 5 MiB, the MD5-of-MD5s ETag of multipart objects and their `partNumber`, Content-MD5 (BadDigest), signatures
(SignatureDoesNotMatch, also for an unknown key id), `If-Match` on a GET, a second CompleteMultipartUpload.

Not supported: `If-Match` on a PUT (501 NotImplemented); an atomic `If-None-Match: *` (several of the writers who race
for a name win); next markers of ListMultipartUploads (they are empty); fractions of a second in `Initiated` (rounded
up); a rule that parts must be equal.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from dataprep_assets_tests.servers import end, free_ports

KEY_ID, SECRET = "test:tester", "secret-for-tests-only"
MAX_PARTS = 10_000

_MODULES = {"account": "account", "container": "container", "object": "obj", "proxy": "proxy"}
_ROLES = tuple(_MODULES)
_START_SECONDS = 180.0

# This program makes the kernel end the server when the tests' process is killed, because a killed process cannot end
# its children.
_PROGRAM = """
import ctypes, signal
ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
from swift.{module}.server import main
main()
"""

_SWIFT_CONF = """
[swift-hash]
swift_hash_path_suffix = tests
[storage-policy:0]
name = only
default = yes
[swift-constraints]
max_file_size = 5368709122
"""

# Set a long `container_update_timeout`, because Swift leaves a slower update of a listing to a daemon, which does not
# run here.
_DEFAULT = """
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
user = {user}
swift_dir = {folder}
devices = {folder}/devices
mount_check = false
disable_fallocate = true
fallocate_reserve = 0
log_name = {role}
log_address = {folder}/no-syslog
log_level = ERROR
node_timeout = 60
conn_timeout = 10
container_update_timeout = 60
"""

_STORAGE = """
[pipeline:main]
pipeline = {role}-server
[app:{role}-server]
use = egg:swift#{role}
network_chunk_size = 1048576
disk_chunk_size = 1048576
"""

# The pipeline has no memcached, because S3 signatures need no token cache.
_PROXY = """
[pipeline:main]
pipeline = catch_errors gatekeeper s3api tempauth bulk copy slo proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
object_chunk_size = 1048576
client_chunk_size = 1048576
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:gatekeeper]
use = egg:swift#gatekeeper
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
max_upload_part_num = {max_parts}
max_multi_delete_objects = 1000
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = {secret} .admin
[filter:bulk]
use = egg:swift#bulk
[filter:slo]
use = egg:swift#slo
max_manifest_segments = {max_parts}
max_manifest_size = 8388608
[filter:copy]
use = egg:swift#copy
"""


@dataclass(frozen=True)
class SwiftServer:
    """The address of the server, and its processes in `pids`."""

    url: str
    pids: tuple[int, ...]


@contextmanager
def run_swift_server(folder: Path) -> Iterator[SwiftServer]:
    """Yield a running server with its devices, rings and logs below `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    ports = dict(zip(_ROLES, free_ports(len(_ROLES)), strict=True))
    (folder / "devices" / "disk").mkdir(parents=True)
    (folder / "swift.conf").write_text(_SWIFT_CONF)
    for role in _ROLES:
        template = _DEFAULT + (_PROXY if role == "proxy" else _STORAGE)
        settings = {"role": role, "port": ports[role], "folder": folder, "user": _user()}
        (folder / f"{role}.conf").write_text(template.format(**settings, max_parts=MAX_PARTS, secret=SECRET))
    _build_rings(folder, ports)
    log = (folder / "log").open("wb")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _PROGRAM.format(module=_MODULES[role]), folder / f"{role}.conf"],
            stdout=log,
            stderr=log,
        )
        for role in _ROLES
    ]
    url = f"http://127.0.0.1:{ports['proxy']}"
    try:
        for role in _ROLES:
            _wait_until_it_answers(f"http://127.0.0.1:{ports[role]}/info", processes, folder)
        yield SwiftServer(url=url, pids=tuple(process.pid for process in processes))
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            end(process, 10)
        log.close()


def _user() -> str:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


def _wait_until_it_answers(url: str, processes: list[subprocess.Popen[bytes]], folder: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            urlopen(url, timeout=5).close()
            return
        except URLError as error:
            # Accept any answer, because a storage server has no /info and answers with an error.
            if hasattr(error, "code"):
                return
        except OSError:
            pass
        if any(process.poll() is not None for process in processes) or time.monotonic() > deadline:
            raise RuntimeError(f"Swift did not start: {(folder / 'log').read_text(errors='replace')[-2000:]}")
        time.sleep(0.05)


def _build_rings(folder: Path, ports: dict[str, int]) -> None:
    """Build one device with one replica for each of the three kinds, in its own process, because Swift loads
    eventlet.
    """
    program = ["from swift.common.ring import RingBuilder"]
    for role in _ROLES[:3]:
        device = {
            "region": 1,
            "zone": 1,
            "ip": "127.0.0.1",
            "port": ports[role],
            "device": "disk",
            "weight": 1.0,
        }
        program += [
            "builder = RingBuilder(2, 1, 1)",
            f"builder.add_dev({device!r})",
            "builder.rebalance(seed='0')",
            f"builder.get_ring().save({str(folder / f'{role}.ring.gz')!r})",
        ]
    subprocess.run([sys.executable, "-c", "\n".join(program)], check=True)
