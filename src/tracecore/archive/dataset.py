"""The archive on disk: two Parquet tables, `bundles` and `facts`, appended to in batches (docs/archive.md).

A batch is one file of each table. The facts are written first; the file of bundles is the commit. Of several rows of
one bundle, that of the latest batch counts.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from tracecore import __version__
from tracecore.archive.record import KeptStream, Record
from tracecore.facts import wire
from tracecore.facts.catalog import BY_NAME
from tracecore.facts.fact import Fact
from tracecore.facts.training import Progress
from tracecore.signals import private
from tracecore.signals.bundle.discovery import Skipped
from tracecore.signals.naming import printable
from tracecore.signals.redaction import redacted, redacted_document
from tracecore.signals.stream import Clock, Counters

SCHEMA: Final = "tracecore/archive/v1"
#: Columns of `bundles` that are set when a batch is written, and those that a result has as fields.
_OF_BATCH: Final = ("batch", "diagnosed_at", "facts_version")
_OWN: Final = ("bundle", "fingerprint", "status", "error", "version", "seconds")


class ArchiveError(Exception):
    """The archive cannot be used; the message says why."""


class Result(msgspec.Struct, kw_only=True):
    """The result of one bundle: columns of the table `bundles`, and its facts as columns of `facts`.

    Args:
        bundle: path or URL.
        fingerprint: of its files before it was read.
        status: `incident`, `no_incident`, `nothing_read` or `error`.
        error: why there is no diagnosis.
        version: of tracecore.
        seconds: that the diagnosis took.
    """

    bundle: str
    fingerprint: str
    status: str
    error: str = ""
    version: str = __version__
    seconds: float = 0.0
    row: dict[str, Any] = {}
    facts: dict[str, list[Any]] = {}

    @property
    def document(self) -> dict[str, Any] | None:
        """The diagnosis; None where there is none."""
        text = self.row.get("document")
        return msgspec.json.decode(text) if text else None


def error_row(bundle: str, fingerprint: str, reason: str) -> Result:
    """The row of a bundle that has no diagnosis."""
    return Result(bundle=bundle, fingerprint=fingerprint, status="error", error=redacted(printable(reason)))


def result_of(record: Record, bundle: str, fingerprint: str, seconds: float = 0.0) -> Result:
    """The rows of a record. Text that is kept holds no secrets."""
    return Result(
        bundle=bundle,
        fingerprint=fingerprint,
        status=record.document["status"],
        seconds=seconds,
        row={
            "files": record.document["coverage"]["files_read"],
            "bytes": record.counters.bytes_read,
            "fact_count": len(record.facts),
            "document": msgspec.json.encode(redacted_document(record.document)).decode(),
            "clock_latest": record.clock.latest,
            "clock_exact": record.clock.exact,
            "counters": msgspec.json.encode(record.counters).decode(),
            "text_left_out": record.text_left_out,
            "skipped": [{"path": skipped.path, "reason": skipped.reason} for skipped in record.skipped],
            "streams": [_stream_row(stream) for stream in record.streams],
        },
        facts=_fact_columns(record.facts),
    )


def _stream_row(stream: KeptStream) -> dict[str, Any]:
    return {
        "path": stream.path,
        "format": stream.format,
        "layer": stream.layer,
        "size": stream.size,
        "resource": msgspec.json.encode(stream.resource).decode(),
        "wrapping": stream.wrapping,
        "containers": msgspec.json.encode(stream.containers).decode(),
        "single_node": stream.single_node,
        "streamed": stream.streamed,
        "pieces": [{"offset": p.offset, "length": p.length, "lines": p.lines, "data": p.data} for p in stream.pieces],
    }


def _fact_columns(facts: Sequence[Fact]) -> dict[str, list[Any]]:
    frequent = [type(fact) is Progress for fact in facts]
    plain = [
        msgspec.to_builtins(fact) if often else redacted_document(msgspec.to_builtins(fact))
        for fact, often in zip(facts, frequent, strict=True)
    ]
    return {
        "number": list(range(len(facts))),
        "kind": [type(fact).__name__ for fact in facts],
        "layer": [fact.layer for fact in facts],
        "time": [fact.time for fact in facts],
        "last_time": [fact.last_time for fact in facts],
        "count": [fact.count for fact in facts],
        "node": [fact.node for fact in facts],
        "pod": [fact.pod for fact in facts],
        "job": [fact.job for fact in facts],
        "attempt": [fact.attempt for fact in facts],
        "rank": [fact.rank for fact in facts],
        "gpu": [fact.gpu for fact in facts],
        "path": [own["source"]["path"] for own in plain],
        "line": [fact.source.line for fact in facts],
        "fields": [msgspec.json.encode(own).decode() for own in plain],
    }


def _schemas() -> tuple[Any, Any]:
    """The columns of `bundles` and of `facts`."""
    import pyarrow as pa

    text, number, flag = pa.string(), pa.int64(), pa.bool_()
    piece = pa.struct([("offset", number), ("length", number), ("lines", number), ("data", pa.binary())])
    stream = pa.struct(
        [
            *(("path", text), ("format", text), ("layer", text), ("size", number), ("resource", text)),
            *(("wrapping", text), ("containers", text), ("single_node", flag), ("streamed", flag)),
            ("pieces", pa.list_(piece)),
        ]
    )
    bundles = pa.schema(
        [
            *(("bundle", text), ("fingerprint", text), ("batch", number), ("diagnosed_at", pa.timestamp("us", "UTC"))),
            *(("version", text), ("facts_version", number), ("status", text), ("error", text)),
            *(("seconds", pa.float64()), ("files", number), ("bytes", number), ("fact_count", number)),
            *(("document", text), ("clock_latest", number), ("clock_exact", flag), ("counters", text)),
            *(("text_left_out", number), ("skipped", pa.list_(pa.struct([("path", text), ("reason", text)])))),
            ("streams", pa.list_(stream)),
        ]
    )
    facts = pa.schema(
        [
            *(("bundle", text), ("batch", number), ("number", number), ("kind", text), ("layer", text)),
            *(("time", number), ("last_time", number), ("count", number), ("node", text), ("pod", text)),
            *(("job", text), ("attempt", number), ("rank", number), ("gpu", text), ("path", text), ("line", number)),
            ("fields", text),
        ]
    )
    return bundles, facts


def _tables(results: Sequence[Result], batch: int, stamp: int) -> tuple[Any, Any]:
    """Results as the tables of a batch.

    Args:
        stamp: microseconds.
    """
    import pyarrow as pa

    bundles, facts = _schemas()
    rows = [
        {
            **{name: getattr(one, name) for name in _OWN},
            "batch": batch,
            "diagnosed_at": stamp,
            "facts_version": wire.VERSION,
            **one.row,
        }
        for one in results
    ]
    columns: dict[str, list[Any]] = {name: [] for name in facts.names}
    for one in results:
        count = len(one.facts.get("number", ()))
        columns["bundle"] += [one.bundle] * count
        columns["batch"] += [batch] * count
        for name, values in one.facts.items():
            columns[name] += values
    return pa.Table.from_pylist(rows, bundles), pa.Table.from_pydict(columns, facts)


class KnownBundle(msgspec.Struct, frozen=True):
    """The newest row of a bundle, without its contents."""

    bundle: str
    batch: int
    fingerprint: str
    status: str


class Archive:
    """A directory with diagnosed bundles.

    Args:
        folder: made by `create`.

    Raises:
        ArchiveError: it is no archive, or a newer version of tracecore made it.
    """

    def __init__(self, folder: Path) -> None:
        try:
            import pyarrow  # noqa: F401
        except ImportError:
            raise ArchiveError("an archive needs pyarrow: pip install 'tracecore-diagnosis[archive]'") from None
        self.folder = folder
        try:
            about = msgspec.json.decode((folder / "archive.json").read_bytes())
            schema = about["schema"]
        except FileNotFoundError:
            raise ArchiveError(
                f"{folder} is no archive: `tracecore archive diagnose … --out {folder}` makes one"
            ) from None
        except (msgspec.DecodeError, KeyError, TypeError):
            raise ArchiveError(f"{folder}/archive.json is damaged") from None
        if schema != SCHEMA:
            raise ArchiveError(f"{folder} is {schema}, and this version reads {SCHEMA}")

    @classmethod
    def create(cls, folder: Path) -> Archive:
        """Open an archive, and make it where there is none.

        Raises:
            ArchiveError: the folder holds something else.
        """
        if not (folder / "archive.json").exists():
            if folder.exists() and any(folder.iterdir()):
                raise ArchiveError(f"{folder} is not empty and is no archive")
            private.make_folder(folder)
            for table in ("bundles", "facts"):
                private.make_folder(folder / table)
            about = {"schema": SCHEMA, "facts_version": wire.VERSION}
            private.write(folder / "archive.json", msgspec.json.encode(about) + b"\n", durable=True)
        return cls(folder)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the archive for one writer, and remove what nobody reads: unfinished batches, and superseded ones.

        Raises:
            ArchiveError: another process writes to it.
        """
        with ExitStack() as stack:
            lock = stack.enter_context(private.opened(self.folder / ".lock", "ab"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ArchiveError(f"another process writes to {self.folder}") from None
            committed = set(self._batches())
            for path in (self.folder / "facts").iterdir():
                if not path.stem.isdigit() or int(path.stem) not in committed:
                    path.unlink(missing_ok=True)
            yield
            self._remove_superseded()

    def _batches(self) -> list[int]:
        names = (path.stem for path in (self.folder / "bundles").glob("*.parquet"))
        return sorted(int(name) for name in names if name.isdigit())

    def _file(self, table: str, batch: int) -> Path:
        return self.folder / table / f"{batch:08d}.parquet"

    def newest(self) -> dict[str, KnownBundle]:
        """The newest row of every bundle."""
        found: dict[str, KnownBundle] = {}
        for batch in self._batches():
            rows = self._read("bundles", batch, ["bundle", "fingerprint", "status"]).to_pylist()
            for row in rows:
                found[row["bundle"]] = KnownBundle(row["bundle"], batch, row["fingerprint"], row["status"])
        return found

    def append(self, results: Sequence[Result], now: int | None = None) -> None:
        """Commit a batch.

        Args:
            now: nanoseconds; the present by default.
        """
        if not results:
            return
        batch = max(self._batches(), default=0) + 1
        bundles, facts = _tables(results, batch, (time.time_ns() if now is None else now) // 1000)
        self._write(self._file("facts", batch), facts)
        self._write(self._file("bundles", batch), bundles)

    def unwritable(self, result: Result) -> str:
        """Return why a result does not fit into the tables; nothing where it does."""
        try:
            _tables([result], 0, 0)
        except (ValueError, TypeError, OverflowError) as error:
            return f"its result cannot be kept: {error}"
        return ""

    def _write(self, path: Path, table: Any) -> None:
        import pyarrow.parquet as parquet

        draft = path.with_suffix(".draft")
        with private.opened(draft) as file:
            parquet.write_table(table, file, compression="zstd", row_group_size=64 << 10)
            os.fsync(file.fileno())
        draft.replace(path)

    def _remove_superseded(self) -> None:
        current = {known.batch for known in self.newest().values()}
        for batch in self._batches():
            if batch not in current:
                # The commit goes first, so that no row is left without its facts.
                self._file("bundles", batch).unlink()
                self._file("facts", batch).unlink(missing_ok=True)

    def _read(self, table: str, batch: int, columns: list[str] | None = None) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as parquet

        path = self._file(table, batch)
        try:
            return parquet.read_table(path, columns=columns, memory_map=False, partitioning=None)
        except (OSError, pa.ArrowException) as error:
            raise ArchiveError(f"{path} cannot be read: {error}") from None

    def files(self, table: str) -> list[Path]:
        """The Parquet files of a table."""
        return [self._file(table, batch) for batch in self._batches()]

    def results(self, bundles: Iterable[str] | None = None, *, contents: bool = True) -> Iterator[Result]:
        """The newest row of every bundle, batch by batch.

        Args:
            bundles: only these.
            contents: with facts and text; else with the diagnosis alone.
        """
        wanted = None if bundles is None else set(bundles)
        newest = self.newest()
        for batch in self._batches():
            own = {k.bundle for k in newest.values() if k.batch == batch and (wanted is None or k.bundle in wanted)}
            if not own:
                continue
            if not contents:
                rows = self._read("bundles", batch, [*_OWN, "document"]).to_pylist()
                for row in (row for row in rows if row["bundle"] in own):
                    yield Result(**{name: row[name] for name in _OWN}, row={"document": row["document"]})
                continue
            facts = self._read("facts", batch)
            begin = 0
            for row in self._read("bundles", batch).to_pylist():
                # A batch holds the facts of its bundles in the order of these.
                count = row["fact_count"] or 0
                rows, begin = facts.slice(begin, count), begin + count
                if row["bundle"] not in own:
                    continue
                columns = {name: rows[name].to_pylist() for name in rows.column_names[2:]}
                named = {name: row.pop(name) for name in _OWN}
                yield Result(**named, row={name: row[name] for name in row if name not in _OF_BATCH}, facts=columns)


def record_of(result: Result) -> tuple[Record, int]:
    """The record that `result_of` was given, and how many facts of it this version cannot read.

    Raises:
        msgspec.ValidationError, msgspec.DecodeError: the rows are damaged.
    """
    row = result.row
    facts: list[Fact] = []
    unknown = 0
    for kind, fields in zip(result.facts["kind"], result.facts["fields"], strict=True):
        if kind not in BY_NAME:
            unknown += 1
            continue
        facts.append(msgspec.json.decode(fields, type=BY_NAME[kind]))
    record = Record(
        document=result.document or {},
        facts=facts,
        clock=Clock(row["clock_latest"], row["clock_exact"]),
        streams=[
            msgspec.convert(
                {
                    **stream,
                    "resource": msgspec.json.decode(stream["resource"]),
                    "containers": msgspec.json.decode(stream["containers"]),
                    "pieces": [[p["offset"], p["length"], p["lines"], p["data"]] for p in stream["pieces"]],
                },
                KeptStream,
            )
            for stream in row["streams"]
        ],
        skipped=[Skipped(skipped["path"], skipped["reason"]) for skipped in row["skipped"]],
        counters=msgspec.json.decode(row["counters"], type=Counters),
        text_left_out=row["text_left_out"],
    )
    return record, unknown
