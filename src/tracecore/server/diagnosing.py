"""Uploaded bundles: streamed to disk, diagnosed one at a time in a process of their own, the result kept."""

from __future__ import annotations

import logging
import os
import queue
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
from starlette.concurrency import run_in_threadpool

from tracecore.server.settings import MIB, ServerSettings
from tracecore.signals import private
from tracecore.store.records import Upload
from tracecore.store.store import Store
from tracecore.store.update import BadIncident, clean

log = logging.getLogger("tracecore.server")

#: Endings that say how a file is to be read.
ENDINGS: Final = (
    ".tar.gz",
    ".tar.xz",
    ".tar.bz2",
    ".tar.zst",
    ".tgz",
    ".tar",
    ".zip",
    ".gz",
    ".zst",
    ".log",
    ".txt",
    ".json",
)
#: What a process says that reached its limit of memory before it could catch that.
_OUT_OF_MEMORY: Final = ("MemoryError", "failed to map segment", "Cannot allocate memory")
#: Bundles that wait.
MAX_WAITING: Final = 20
#: Free bytes that stay on the disk.
SPARE: Final = 256 * MIB


class Busy(Exception):
    """No upload is taken now; the message says why."""


class Diagnoses:
    """Takes bundles and works through them in a thread.

    Args:
        folder: where bundles wait, each in a folder of its own.
    """

    def __init__(self, store: Store, settings: ServerSettings, folder: Path, clock: Callable[[], int]) -> None:
        self._store = store
        self._settings = settings
        self._folder = folder
        self._clock = clock
        self._waiting: queue.Queue[str | None] = queue.Queue()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="diagnoses", daemon=True)

    def start(self) -> None:
        """Go on with what waited when the server stopped, then take more."""
        private.make_folder(self._folder)
        for upload in self._store.uploads.unfinished():
            if self._bundle(upload.id) is not None:
                self._store.uploads.requeue(upload.id)
                self._waiting.put(upload.id)
        known = {upload.id for upload in self._store.uploads.unfinished()}
        for left in self._folder.iterdir():
            if left.name not in known:
                shutil.rmtree(left, ignore_errors=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._waiting.put(None)
        self._kill()
        if self._thread.ident is not None:
            self._thread.join(10)

    async def take(self, name: str, chunks: AsyncIterator[bytes], *, who: str, tenant: str = "") -> Upload:
        """Write a bundle to disk as it arrives, and let it wait for its diagnosis.

        Raises:
            Busy: too many wait, or the disk is full.
            ValueError: it is empty.
        """
        if self._waiting.qsize() >= MAX_WAITING:
            raise Busy(f"{MAX_WAITING} bundles wait already: try again later")
        ident = secrets.token_hex(12)
        own = self._folder / ident
        await run_in_threadpool(private.make_folder, own)
        name = clean(name.replace("\\", "/").rpartition("/")[2], 300) or "bundle"
        # The name on disk is ours; only how to read it is taken from the sender's.
        ending = next((end for end in ENDINGS if name.lower().endswith(end)), "")
        size = 0
        try:
            with private.opened(own / f"bundle{ending}") as file:
                async for chunk in chunks:
                    size += len(chunk)
                    if shutil.disk_usage(own).free < SPARE:
                        raise Busy("the disk is full")
                    await run_in_threadpool(file.write, chunk)
            if not size:
                raise ValueError("the upload is empty")
            made = await run_in_threadpool(self._note, ident, name, size, who, tenant)
        except BaseException:
            shutil.rmtree(own, ignore_errors=True)
            raise
        self._waiting.put(ident)
        return made

    def _note(self, ident: str, name: str, size: int, who: str, tenant: str) -> Upload:
        return self._store.uploads.create(name, size, who=who, now=self._clock(), tenant=tenant, id=ident)

    def _bundle(self, ident: str) -> Path | None:
        own = self._folder / ident
        return next(iter(sorted(own.glob("bundle*"))), None) if own.is_dir() else None

    def _run(self) -> None:
        while (ident := self._waiting.get()) is not None:
            if self._stopping:
                return
            try:
                self._one(ident)
            except Exception:
                log.exception("the diagnosis of upload %s failed", ident)
                self._finish(ident, error="the server failed while it worked on this; its log says why")

    def _one(self, ident: str) -> None:
        bundle = self._bundle(ident)
        if bundle is None or not self._store.uploads.claim(ident, os.uname().nodename[:80], self._clock()):
            return
        error = self._diagnose(ident, bundle)
        if self._stopping:
            return  # it begins anew with the next start
        if error:
            self._finish(ident, error=error)
            return
        document: dict[str, Any] = msgspec.json.decode((bundle.parent / "document.json").read_bytes())
        page = (bundle.parent / "page.html").read_text("utf-8")
        _hide(document, str(bundle.parent))
        page = page.replace(str(bundle.parent) + "/", "")
        upload = self._store.uploads.get(ident)
        tenant = upload.tenant if upload is not None else ""
        try:
            stored = self._store.put_diagnosis(document, self._clock(), origin="upload", tenant=tenant)
        except BadIncident as problem:
            self._finish(ident, error=str(problem))
            return
        self._finish(ident, document=document, page=page, incidents=[one.id for one in stored])

    def _finish(self, ident: str, **result: Any) -> None:
        self._store.uploads.finish(ident, self._clock(), **result)
        shutil.rmtree(self._folder / ident, ignore_errors=True)

    def _diagnose(self, ident: str, bundle: Path) -> str:
        """Run the worker; why it gave no result, or nothing."""
        settings = self._settings
        command = [sys.executable, "-m", "tracecore.server.bundle_worker", str(bundle), str(bundle.parent)]
        command += [str(settings.upload_memory), str(settings.upload_seconds)]
        # The worker reads hostile files: it gets no secret of the server's.
        kept = {
            name: value for name, value in os.environ.items() if name in ("PATH", "PYTHONPATH", "LANG", "LC_ALL", "TZ")
        }
        environment = {**kept, "HOME": str(bundle.parent), "TMPDIR": str(bundle.parent), "OPENBLAS_NUM_THREADS": "1"}
        with (bundle.parent / "errors").open("w+b") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env=environment,
                start_new_session=True, cwd=bundle.parent,
            )  # fmt: skip
            late = self._follow(ident, self._process, time.monotonic() + settings.upload_seconds)
            status = self._process.wait()
            self._process = None
            if late:
                return f"it took longer than {settings.upload_seconds} s"
            if status == 0:
                return ""
            errors.seek(0)
            said = errors.read()[-2_000:].decode("utf-8", "replace").strip().splitlines()
        if status == 3 or any(word in line for word in _OUT_OF_MEMORY for line in said):
            return f"it needs more memory than {settings.upload_memory // MIB} MiB"
        if status < 0:
            return f"it was ended by {signal.Signals(-status).name}: it took too much time or memory"
        return said[-1] if said else f"the diagnosis ended with status {status}"

    def _follow(self, ident: str, process: subprocess.Popen[bytes], deadline: float) -> bool:
        """Tell the worker's progress until it ends; whether it took too long."""
        assert process.stdout is not None
        with process.stdout as output, selectors.DefaultSelector() as ready:
            os.set_blocking(output.fileno(), False)
            ready.register(output, selectors.EVENT_READ)
            while True:
                left = deadline - time.monotonic()
                if left <= 0:
                    self._kill()
                    return True
                if not ready.select(min(left, 1.0)):
                    continue
                said = os.read(output.fileno(), 1 << 16)
                if not said:
                    return False
                done, _, total = said.strip().rpartition(b"\n")[2].decode("ascii", "replace").partition(" ")
                if done.isdigit() and total.isdigit():
                    read = f"read {int(done) / 1e6:,.0f} of {int(total) / 1e6:,.0f} MB"
                    self._store.uploads.progress(ident, read)

    def _kill(self) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _hide(document: Any, folder: str) -> None:
    """Take the folder of an upload out of every text: it says nothing to whoever reads the diagnosis."""
    pairs = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in [*pairs]:
        if isinstance(value, str):
            document[key] = value.replace(folder + "/", "")
        elif isinstance(value, (dict, list)):
            _hide(value, folder)
