"""Rolling window of a training machine over a published release: one shard in use, and the next one downloading.

Every rank of a machine creates its own `ShardWindow` on the same cache folder. The ranks coordinate only through files
(`cache`). One process downloads a shard, the others use it as soon as it is verified, and no rank waits in a
collective. The window has a thread for all work, so `prepare`, `wait` and `swap` may be called from any thread, and
`swap_async` and `await_ready` from asyncio. `Schedule.shard(step)` determines the shard of a step at start, swap and
restart alike.

A window belongs to the process that created it: create it after a fork, and pass `Shard`s, not windows, to other
processes. Entry point: :class:`ShardWindow`.
"""

import asyncio
import logging
import sys
import threading
import time
import weakref
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from dataprep_assets.errors import (
    ConfigError,
    CorruptSourceError,
    DataprepError,
    SourceError,
    WorkerDiedError,
    count_of,
)
from dataprep_assets.serving.window.cache import Cache
from dataprep_assets.serving.window.events import OnEvent, WindowEvent, WindowStatus, notify
from dataprep_assets.serving.window.keep_policy import Keep, check_keep
from dataprep_assets.serving.window.kept_manifest import read_or_restore
from dataprep_assets.serving.window.readers import Shard
from dataprep_assets.serving.window.release import ReleaseLocation, locate_files, locate_release
from dataprep_assets.serving.window.schedule import Schedule
from dataprep_assets.serving.window.window_state import WindowState
from dataprep_assets.stores.files import expand_path
from dataprep_assets.stores.retry import RetryPolicy, StoppedError
from dataprep_assets.stores.store import Store

# Width of the bar in characters, chosen so that the whole line has fewer than 100 characters.
_WIDTH = 30


class ProgressBar:
    """Progress bar `label ███ 42%  1.2 of 2.9 GB  310 MB/s`, drawn only if `stream` is a terminal.

    `total` is in bytes. The default `stream` is standard error.
    """

    def __init__(self, label: str, total: int, stream: TextIO | None = None) -> None:
        self._label = label
        self._total = total
        self._stream = sys.stderr if stream is None else stream
        self._shown = self._stream.isatty()
        self._started = time.monotonic()
        self._last = 0.0
        self.done = 0

    def add(self, count: int) -> None:
        """Add received bytes; a negative number means discarded bytes."""
        self.done += count
        now = time.monotonic()
        # Draw at most ten times per second, because a slow remote terminal would otherwise delay the download.
        if self._shown and now - self._last > 0.1:
            self._last = now
            self._draw(now)

    def close(self) -> None:
        """End the line of the bar."""
        # Skip a bar that was never drawn, because it has no line to end.
        if self._shown and self._last:
            self._draw(time.monotonic())
            self._stream.write("\n")
            self._stream.flush()

    def _draw(self, now: float) -> None:
        share = min(1.0, self.done / self._total) if self._total else 1.0
        bar = ("█" * round(share * _WIDTH)).ljust(_WIDTH, "░")
        speed = self.done / max(now - self._started, 1e-9) / 1e6
        text = (
            f"{self._label} {bar} {share:4.0%}  {self.done / 1e9:.2f} of {self._total / 1e9:.2f} GB  {speed:.0f} MB/s"
        )
        # Erase the rest of the line after the text, because an earlier text may have been longer.
        self._stream.write(f"\r{text}\x1b[K")
        self._stream.flush()


logger = logging.getLogger(__name__)

# Interval in seconds between checks for shards that the process's readers have released.
_RELEASE_SECONDS = 0.5
# Maximum time in seconds for which `close` waits for a transfer that hangs in the network. The transfer's thread is a
# daemon, so it does not keep the process alive.
_CLOSE_SECONDS = 10.0

_RETRY = RetryPolicy(attempts=5, base_seconds=2.0, max_seconds=120.0)


class ShardWindow:
    """Rolling window over a release; the module docstring describes it.

    - `release`: folder, manifest path, URL (`s3://`, `gs://`, `https://`, `hf://`, `file://`), `Store`, or
      `ReleaseLocation(store, "prefix/")`;
    - `cache_dir`: folder for the shards, shared by the ranks of this machine; created if necessary;
    - `steps_per_shard`: number of steps that each shard is trained on;
    - `keep`: `"all"`, a number of shards, or `CacheLimit(n)`;
    - `prefix`: split whose shards are read, such as `train`;
    - `sequence_length`: sequence length of the model; rejected if the release has a different one;
    - `retry`: number of attempts and pauses between them, in addition to the store's own; a waiting swap fails when
      they are used up, while a prefetch keeps trying until its swap;
    - `on_event`: called from the window's thread with every `WindowEvent`; must not block;
    - `room_seconds`: how long a shard may wait for room that other processes occupy.

    Raises ConfigError for invalid arguments, and MissingArtifactError or TransferError if the manifest cannot be read.
    Nothing is downloaded before `prepare` or `swap`.
    """

    def __init__(
        self,
        release: str | Path | Store | ReleaseLocation,
        cache_dir: str | Path,
        steps_per_shard: int,
        *,
        keep: Keep = "all",
        prefix: str = "train",
        sequence_length: int | None = None,
        retry: RetryPolicy = _RETRY,
        on_event: OnEvent | None = None,
        room_seconds: float = 3600.0,
    ) -> None:
        directory = expand_path(cache_dir, "cache_dir").absolute()
        location = locate_release(release)
        self.release = read_or_restore(location, directory)
        shards = self.release.shards_of(prefix)
        if sequence_length not in (None, self.release.sequence_length):
            raise ConfigError(
                f"sequence_length={sequence_length}: the release of {self.release.dataset} has samples of "
                f"{count_of(self.release.sequence_length, 'token')}. Use that length, or publish a release with the "
                "length that you need"
            )
        self.schedule = Schedule(shards=len(shards), steps_per_shard=steps_per_shard)
        check_keep(keep, [shard.bytes for shard in shards])
        self._shards, self._prefix = shards, prefix
        self._retry = retry
        self._on_event = on_event
        self._cache = Cache(directory, locate_files(location, self.release), self.release, prefix, keep, room_seconds)
        self._cache.attach()
        # This lock allows one swap at a time. The window's thread never takes it, so a waiting swap cannot block the
        # download.
        self._swapping = threading.RLock()
        # This condition guards all attributes below, and is notified when any of them changes.
        self._changed = threading.Condition()
        # The thread first downloads `_wanted`, for which a swap waits, and then `_next`, the prefetch.
        self._active: Shard | None = None
        self._wanted: int | None = None
        self._next: int | None = None
        # `_ready` has the shards that were verified at their last check. They are checked again before use, because
        # files may change.
        self._ready: set[int] = set()
        # `_failures` has each shard's last error until the shard is verified. A shard in `_gave_up` is not downloaded
        # again until `prepare` requests it.
        self._failures: dict[int, DataprepError] = {}
        self._gave_up: dict[int, DataprepError] = {}
        self._bar: ProgressBar | None = None
        self._fetching: int | None = None
        self._closed = False
        self._ended = False
        # `_open` has the shards that this process still reads. They are protected from eviction until they are
        # garbage-collected.
        self._open: weakref.WeakSet[Shard] = weakref.WeakSet()
        self._held: set[int] = set()
        self._thread = threading.Thread(target=self._run_thread, name="shard-window", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def active(self) -> Shard | None:
        """Shard of the last swap, or None before it."""
        return self._active

    def prepare(self, step: int) -> None:
        """Start downloading the shard of this step and return immediately.

        A shard that was given up gets a new set of attempts.
        """
        index = self.schedule.shard(step)
        with self._changed:
            self._check_open()
            self._wanted = index
            if self._next != index:
                # After a jump, the prefetch is for a different shard. Cancel it, so that it does not delay the shard
                # that is needed now.
                self._next = None
            self._gave_up.pop(index, None)
            self._forget_changed_shard(index)
            self._update_lease()
            self._changed.notify_all()

    def wait(self, timeout: float | None = None) -> None:
        """Block until the last prepared shard is verified.

        Raises the error of the last attempt once all attempts are used up, and TimeoutError after `timeout` seconds.
        Raises StoppedError if the window was closed, and WorkerDiedError if a bug stopped its thread.
        """
        with self._changed:
            self._check_open()
            index = self._wanted
            if index is None:
                return
            is_done = self._changed.wait_for(
                lambda: self._closed or self._ended or index in self._ready or index in self._gave_up, timeout
            )
            if self._closed:
                raise StoppedError(f"shard {index}: the window is closed")
            if index in self._gave_up:
                raise self._gave_up[index]
            if self._ended:
                raise WorkerDiedError(
                    f"shard {index}: the window's download thread ended (see the log). Open a new window"
                )
            if not is_done:
                raise TimeoutError(
                    f"shard {index} is not ready after {timeout} s: {self._failures.get(index, 'downloading')}"
                )

    def swap(self, step: int) -> Shard:
        """Make the shard of this step active and return it; blocks only if it is not ready. Accepts any step.

        Starts downloading the next shard. Returns the same object while the schedule stays on the shard.
        """
        index = self.schedule.shard(step)
        with self._swapping:
            while self._active is None or self._active.index != index:
                self.prepare(step)
                self.wait()
                try:
                    shard = self._cache.open(index)
                except (CorruptSourceError, FileNotFoundError) as error:
                    # Download the shard again before use, because it changed or was removed after verification.
                    self._emit_event("refused", index, str(error))
                    with self._changed:
                        self._ready.discard(index)
                    continue
                with self._changed:
                    # Check again, because a window that was closed meanwhile has no lease, so other processes may evict
                    # the shard.
                    self._check_open()
                    self._active, self._wanted = shard, None
                    self._open.add(shard)
                self._emit_event("swapped", index, f"shard {index} is active from step {step}")
            self._prefetch(step)
            return self._active

    async def swap_async(self, step: int) -> Shard:
        """Call `swap` without blocking the event loop."""
        return await asyncio.to_thread(self.swap, step)

    async def await_ready(self, timeout: float | None = None) -> None:
        """Call `wait` without blocking the event loop."""
        await asyncio.to_thread(self.wait, timeout)

    def state(self, step: int) -> WindowState:
        """Return the state for a checkpoint that resumes at `step`, the first step that was not trained yet."""
        schedule = self.schedule
        return WindowState(
            release=self.release.digest,
            prefix=self._prefix,
            shards=schedule.shards,
            steps_per_shard=schedule.steps_per_shard,
            step=step,
            shard=schedule.shard(step),
            epoch=schedule.epoch(step),
        )

    def restore(self, state: WindowState) -> int:
        """Start downloading the shard of `state` and return the step at which to resume.

        The number of ranks may differ. Raises ConfigError if this window's release, prefix or schedule differs.
        """
        state.check(self.state(state.step))
        self.prepare(state.step)
        return state.step

    def status(self) -> WindowStatus:
        """Return the current status of the window."""
        with self._changed:
            return WindowStatus(
                active=None if self._active is None else self._active.index,
                wanted=self._wanted,
                next=self._next,
                ready=tuple(sorted(self._ready & self._find_needed_shards())),
                fetching=self._fetching,
                done_bytes=0 if self._bar is None else self._bar.done,
                total_bytes=0 if self._fetching is None else self._shards[self._fetching].bytes,
                failures={index: str(error) for index, error in self._failures.items()},
                gave_up=tuple(sorted(self._gave_up)),
            )

    def close(self) -> None:
        """Stop downloading and release all shards. May be called twice."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        self._thread.join(_CLOSE_SECONDS)
        self._cache.detach()

    # --- internal methods

    def _check_open(self) -> None:
        if self._closed:
            raise ConfigError("the window is closed. Open a new one")

    def _find_needed_shards(self) -> set[int]:
        indices = {self._wanted, self._next, self._active.index if self._active is not None else None}
        return {index for index in indices if index is not None}

    def _update_lease(self) -> None:
        """Update the lease with the shards that this process needs or still reads. Requires `_changed`."""
        held_indices = self._find_needed_shards() | {shard.index for shard in self._open}
        # Write no lease after `close`, because a thread that hung in a transfer may still get here.
        if held_indices != self._held and not self._closed:
            self._cache.hold(held_indices)
            self._held = held_indices

    def _forget_changed_shard(self, index: int) -> None:
        if index in self._ready and not self._cache.is_verified(index):
            self._ready.discard(index)

    def _prefetch(self, step: int) -> None:
        next_shard = self.schedule.next_shard(step)
        with self._changed:
            active = self._active
            # With a single shard, the next shard is the active one, so there is nothing to prefetch.
            next_index = None if active is None or next_shard == active.index else next_shard
            if next_index != self._next:
                self._next = next_index
                if next_index is not None:
                    self._forget_changed_shard(next_index)
            self._update_lease()
            self._changed.notify_all()

    def _find_next_download(self) -> int | None:
        for index in (self._wanted, self._next):
            if index is not None and index not in self._ready and index not in self._gave_up:
                return index
        return None

    def _run_thread(self) -> None:
        try:
            self._download_until_closed()
        finally:
            # Set the flag even if a bug stopped the thread, so that no caller waits forever.
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _download_until_closed(self) -> None:
        while True:
            with self._changed:
                while not self._closed and self._find_next_download() is None:
                    # Wake up periodically while readers hold shards that are no longer needed, because readers end
                    # without notice.
                    self._changed.wait(_RELEASE_SECONDS if self._held - self._find_needed_shards() else None)
                    self._update_lease()
                if self._closed:
                    return
                index = self._find_next_download()
            if index is not None:
                self._ensure(index)

    def _ensure(self, index: int) -> None:
        """Retry until the shard is verified or no longer needed, or until a waiting swap has used up its attempts."""
        tries = failures = 0
        while True:
            if self._is_stale(index):
                return
            try:
                self._fetch(index)
            except StoppedError:
                return
            except (DataprepError, OSError) as error:
                failure = error if isinstance(error, DataprepError) else SourceError(f"shard {index}: {error}")
                failures += 1
                # Do not count the failures of a prefetch as attempts, because no swap waits for the shard yet.
                tries += self._wanted == index
                if self._report_failure(index, failure, tries, failures):
                    return
            else:
                self._emit_event("ready", index, f"shard {index} is verified")
                with self._changed:
                    self._failures.pop(index, None)
                    self._ready.add(index)
                    self._changed.notify_all()
                return

    def _fetch(self, index: int) -> None:
        bar = ProgressBar(self._shards[index].token_file.key, self._shards[index].bytes)
        with self._changed:
            self._bar, self._fetching = bar, index

        def progress(count: int) -> None:
            # Raise an exception, because a transfer can only be stopped in this way.
            if self._is_stale(index):
                raise StoppedError(f"shard {index} is no longer needed")
            bar.add(count)

        def should_stop_waiting() -> bool:
            # Update the lease at each call, because a reader of this process may end while the shard waits for room.
            with self._changed:
                self._update_lease()
                return self._is_stale(index)

        try:
            self._emit_event("fetching", index, f"downloading shard {index} (if it is not in the cache)")
            self._cache.ensure(index, progress=progress, stopped=should_stop_waiting, note=self._emit_event)
        finally:
            bar.close()
            with self._changed:
                self._bar, self._fetching = None, None

    def _is_stale(self, index: int) -> bool:
        return self._closed or index not in (self._wanted, self._next)

    def _report_failure(self, index: int, error: DataprepError, tries: int, failures: int) -> bool:
        """Report a failed attempt immediately; then wait for the next one, or give up and return True."""
        # A ConfigError is final, because a retry does not fix missing room or a setting of the store.
        is_last = tries == self._retry.attempts or isinstance(error, ConfigError)
        urgent = self._wanted == index
        tried = (
            f"attempt {tries} of {self._retry.attempts} failed" if urgent else f"prefetch failed (failure {failures})"
        )
        logger.error("shard %d: %s: %s", index, tried, error)
        notify(
            self._on_event, WindowEvent(kind="gave_up" if is_last else "failed", shard=index, detail=tried, error=error)
        )
        with self._changed:
            self._failures[index] = error
            if is_last:
                self._gave_up[index] = error
            self._changed.notify_all()
        if not is_last:
            pause = self._retry.delay(failures, None)
            with self._changed:
                # End the pause early if the shard is no longer needed, or if a swap starts waiting for the prefetched
                # shard.
                self._changed.wait_for(lambda: self._is_stale(index) or (not urgent and self._wanted == index), pause)
        return is_last

    def _emit_event(self, kind: str, index: int, detail: str) -> None:
        logger.log(logging.WARNING if kind in ("refused", "kept") else logging.INFO, "%s", detail)
        notify(self._on_event, WindowEvent(kind=kind, shard=index, detail=detail))  # type: ignore[arg-type]
