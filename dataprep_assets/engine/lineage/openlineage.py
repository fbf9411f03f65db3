"""OpenLineage events: a START and a COMPLETE event per built artifact, with its inputs and its output.

The events come from the artifact's receipt, so they are sent only for finished artifacts. The digest of an artifact's
files is its `version` facet. Only `OpenLineage.send` imports the client, which is the extra `openlineage`.

Entry points: `OpenLineage`, `check_target`.
"""

import os
from collections.abc import Iterator
from datetime import datetime, timedelta
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit
from uuid import NAMESPACE_URL, uuid5

from dataprep_assets.errors import ConfigError, TransferError, build_missing_extra_error, count_of
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.stores.endpoints import allows_http, check_endpoint

API_KEY = "OPENLINEAGE_API_KEY"
"""Environment variable with the key that is sent to the server."""
_JOBS, _PRODUCER = "dataprep", "urn:dataprep-assets"
_RETRY = {"total": 2, "backoff_factor": 0.3, "status_forcelist": [429, 500, 502, 503, 504], "allowed_methods": ["POST"]}


def check_target(target: str) -> None:
    """Raise ConfigError if the extra `openlineage` is not installed, or the server's connection is not encrypted."""
    if find_spec("openlineage") is None:
        raise build_missing_extra_error("lineage.openlineage", "openlineage-python", "openlineage")
    if "://" in target:
        check_endpoint(target, "lineage.openlineage", allow_http=allows_http(os.environ))


class OpenLineage:
    """Sender of the events of one step. After a failure, it sends no more events, and counts them.

    Args:
        target: URL of a server, or the path of a file to which the events are appended.
        store: Where the artifacts are stored.
    """

    def __init__(self, target: str, store: ArtifactStore) -> None:
        self._target, self._store = target, store
        self._transport: Any = None
        self._unsent, self._reason = 0, ""

    def send(self, receipt: Receipt, rows: int | None) -> None:
        """Send the events of an artifact; `rows` is its number of rows, if it has rows."""
        if not self._reason:
            try:
                self._emit(receipt, rows)
                return
            # Catch every exception, because the client raises errors of its HTTP library, and a failure to send must
            # not fail the build.
            except Exception as error:
                self._reason = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
        self._unsent += 1

    def finish(self) -> None:
        """Raise TransferError with the number of artifacts whose events were not sent, and the reason."""
        if self._unsent:
            raise TransferError(
                f"lineage.openlineage: the events of {count_of(self._unsent, 'artifact')} were not sent to "
                f"{self._target}: {self._reason:.300}. The artifacts are finished. Check the address"
            )

    def _emit(self, receipt: Receipt, rows: int | None) -> None:
        check_target(self._target)
        from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
        from openlineage.client.facet_v2 import dataset_version_dataset, output_statistics_output_dataset

        if self._transport is None:
            self._transport = _open_transport(self._target)
        artifact = Artifact(dataset=receipt.dataset, name=receipt.artifact, partition=receipt.partition)
        output_namespace, output_name = _split_location(self._store.location(artifact))
        statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
            rowCount=rows, size=receipt.total_bytes, fileCount=len(receipt.files)
        )
        output = OutputDataset(
            namespace=output_namespace,
            name=output_name,
            facets={"version": dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=receipt.content)},
            outputFacets={"outputStatistics": statistics},
        )
        inputs = [
            InputDataset(
                namespace=namespace,
                name=name,
                facets={"version": dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=content)},
            )
            for namespace, name, content in self._list_inputs(receipt)
        ]
        end = datetime.fromisoformat(receipt.measured["created"])
        start = end - timedelta(seconds=float(receipt.measured.get("wall_seconds", 0)))
        run = Run(runId=str(uuid5(NAMESPACE_URL, f"{output_name}:{receipt.key}:{end.isoformat()}")))
        job = Job(namespace=_JOBS, name=f"{receipt.dataset}/{receipt.artifact}")
        for state, event_time in ((RunState.START, start), (RunState.COMPLETE, end)):
            event = RunEvent(
                eventType=state,
                eventTime=event_time.isoformat(),
                run=run,
                job=job,
                producer=_PRODUCER,
                inputs=inputs,
                outputs=[output],
            )
            self._transport.emit(event)

    def _list_inputs(self, receipt: Receipt) -> Iterator[tuple[str, str, str]]:
        """Yield the namespace, the name and the content of each artifact from which the artifact was built."""
        for name, content in sorted(receipt.recipe.get("upstream", {}).items()):
            # Artifacts of other datasets are named `<dataset>:<artifact>[/<partition>]`.
            dataset, _, artifact = name.rpartition(":")
            yield *_split_location(f"{self._store.address}/{dataset or receipt.dataset}/{artifact}"), content


def _split_location(location: str) -> tuple[str, str]:
    """Return the namespace and the name of a dataset, by the naming rules of OpenLineage."""
    parts = urlsplit(location)
    if not parts.netloc:
        return "file", location
    return f"{parts.scheme}://{parts.netloc}", parts.path.lstrip("/")


def _open_transport(target: str) -> Any:
    if "://" not in target:
        from openlineage.client.transport.file import FileConfig, FileTransport

        return FileTransport(FileConfig(log_file_path=target, append=True))
    from openlineage.client.transport.http import ApiKeyTokenProvider, HttpConfig, HttpTransport, TokenProvider

    key = os.environ.get(API_KEY)
    auth = ApiKeyTokenProvider({"api_key": key}) if key else TokenProvider({})
    # End the URL with a slash, because the client joins the path of the API to it, and would replace a last segment.
    return HttpTransport(HttpConfig(url=f"{target.rstrip('/')}/", auth=auth, retry=_RETRY))
