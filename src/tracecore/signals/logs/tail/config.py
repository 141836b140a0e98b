"""Options of the `filelog` receiver, by the OpenTelemetry Collector's names and with its defaults."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
import re2

from tracecore.signals.logs.tail import globs

Duration = Annotated[int, msgspec.Meta(ge=0, extra={"unit": "duration"})]
Interval = Annotated[int, msgspec.Meta(ge=1_000_000, extra={"unit": "duration"})]
Size = Annotated[int, msgspec.Meta(ge=0, extra={"unit": "size"})]
Count = Annotated[int, msgspec.Meta(ge=0)]
StorageId = Annotated[str, msgspec.Meta(extra={"extension": "storage"})]

MILLISECOND: Final = 1_000_000
SECOND: Final = 1_000 * MILLISECOND


class Multiline(msgspec.Struct, frozen=True, kw_only=True):
    """Pattern for the beginning or the end of an entry that is more than a line. One of the two is given.

    Args:
        line_start_pattern: an entry begins where this matches.
        line_end_pattern: an entry ends where this has matched.
        omit_pattern: leave out what matched.
    """

    line_start_pattern: str = ""
    line_end_pattern: str = ""
    omit_pattern: bool = False


class Sort(msgspec.Struct, frozen=True, kw_only=True):
    """One order of files.

    Args:
        sort_type: by a number, a text or a time in the name, or by when the file was changed last.
        regex_key: the named group of `regex` that has it.
        ascending: the smallest first.
        layout: of a timestamp, in strptime's directives.
        location: the time zone of a timestamp.
    """

    sort_type: Literal["numeric", "alphabetical", "timestamp", "mtime"]
    regex_key: str = ""
    ascending: bool = False
    layout: str = ""
    location: str = ""


class Ordering(msgspec.Struct, frozen=True, kw_only=True):
    """Selection and order of the files that are read.

    Args:
        regex: named groups to sort by; a file that does not match is not read.
        top_n: only so many files (of each group); 0 for all. One where `sort_by` is given and this is not.
        sort_by: the last one matters most.
        group_by: files are sorted and counted in groups: those with the same first group of this expression.
    """

    regex: str = ""
    top_n: Count | None = None
    sort_by: tuple[Sort, ...] = ()
    group_by: str = ""


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """Options for waiting when nobody takes the receiver's records.

    Args:
        enabled: try again; otherwise the records are dropped, and counted.
        initial_interval: the first wait.
        max_interval: the longest wait.
        max_elapsed_time: when to give up; 0 for never.
    """

    enabled: bool = False
    initial_interval: Duration = SECOND
    max_interval: Duration = 30 * SECOND
    max_elapsed_time: Duration = 300 * SECOND


class FileLogConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `filelog`.

    Args:
        include: globs of the files to read (`*`, `?`, `[…]`, `{a,b}`, `**`).
        exclude: globs of files not to read.
        exclude_older_than: files not changed for so long are not read.
        ordering_criteria: which of them, and in which order.
        start_at: where to begin in files that are there at the first start: `beginning` or `end`.
        poll_interval: how often files are looked at, where it is not announced that they change.
        inotify: be told by the kernel which files change and look at those at once. Not an option of the Collector.
        max_concurrent_files: how many files are held open, twice.
        max_batches: at most so many times half of `max_concurrent_files` files in one look; 0 for all.
        fingerprint_size: how many bytes of its beginning identify a file.
        initial_buffer_size: accepted for the Collector's sake.
        max_log_size: longer entries are split, or cut off.
        max_log_size_behavior: `split` or `truncate`.
        encoding: of the files; `nop` gives bytes as they are.
        multiline: where entries begin or end, if not at line ends.
        preserve_leading_whitespaces: do not remove blanks at the beginning of an entry.
        preserve_trailing_whitespaces: do not remove blanks at the end of an entry.
        force_flush_period: a last line without an end is given out after it has not grown for so long; 0 for never.
        include_file_name: attribute `log.file.name`.
        include_file_path: attribute `log.file.path`.
        include_file_name_resolved: attribute `log.file.name_resolved`, behind symbolic links.
        include_file_path_resolved: attribute `log.file.path_resolved`.
        include_file_owner_name: attribute `log.file.owner.name`.
        include_file_owner_group_name: attribute `log.file.owner.group.name`.
        include_file_permissions: attribute `log.file.permissions`.
        include_file_record_number: attribute `log.file.record_number`.
        include_file_record_offset: attribute `log.file.record_offset`.
        delete_after_read: remove files that were read to their end and delivered.
        compression: `gzip` for files that are compressed, `auto` to look.
        on_truncate: what to read of a file that became shorter and begins as before.
        polls_to_archive: accepted for the Collector's sake: files are remembered for long in any case.
        file_cache_advise: accepted for the Collector's sake.
        skip_unmodified_files: accepted for the Collector's sake: files that did not change are never opened.
        storage: the extension that keeps how far files were read.
        retry_on_failure: what to do when nobody takes the records.
        attributes: added to every record.
        resource: added to the resource of every record.
        operators: what is done with every record, in order.
        rotation_stalled: warn of container logs that stay above this size for 30 s: the kubelet's
            `containerLogMaxSize`; 0 for never. Only with a `container` operator: nobody promises to rotate other
            files. Not an option of the Collector.
    """

    include: tuple[str, ...]
    exclude: tuple[str, ...] = ()
    exclude_older_than: Duration = 0
    ordering_criteria: Ordering = Ordering()
    start_at: Literal["beginning", "end"] = "end"
    poll_interval: Interval = 200 * MILLISECOND
    inotify: bool = True
    max_concurrent_files: Annotated[int, msgspec.Meta(ge=1)] = 1024
    max_batches: Count = 0
    fingerprint_size: Size = 1000
    initial_buffer_size: Size = 16 << 10
    max_log_size: Size = 1 << 20
    max_log_size_behavior: Literal["split", "truncate"] = "split"
    encoding: str = "utf-8"
    multiline: Multiline = Multiline()
    preserve_leading_whitespaces: bool = False
    preserve_trailing_whitespaces: bool = False
    force_flush_period: Duration = 500 * MILLISECOND
    include_file_name: bool = True
    include_file_path: bool = False
    include_file_name_resolved: bool = False
    include_file_path_resolved: bool = False
    include_file_owner_name: bool = False
    include_file_owner_group_name: bool = False
    include_file_permissions: bool = False
    include_file_record_number: bool = False
    include_file_record_offset: bool = False
    delete_after_read: bool = False
    compression: Literal["", "gzip", "auto"] = ""
    on_truncate: Literal["ignore", "read_whole_file", "read_new"] = "ignore"
    polls_to_archive: Count = 0
    file_cache_advise: bool = False
    skip_unmodified_files: bool = False
    storage: StorageId | None = None
    retry_on_failure: Retry = Retry()
    attributes: dict[str, Any] = {}
    resource: dict[str, Any] = {}
    operators: tuple[Any, ...] = ()
    rotation_stalled: Size = 10 << 20

    @property
    def rotated_above(self) -> int:
        """Size in bytes above which a file should have been rotated; 0 where nobody promises to rotate."""
        containers = any(isinstance(each, Mapping) and each.get("type") == "container" for each in self.operators)
        return self.rotation_stalled if containers else 0

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """Yield what is wrong with it, and where."""
        from tracecore.signals.logs.operators.chain import problems

        if not self.include:
            yield ("include",), "at least one glob is needed"
        for name, patterns in (("include", self.include), ("exclude", self.exclude)):
            for number, pattern in enumerate(patterns):
                if wrong := globs.problem(pattern):
                    yield (name, number), wrong
        if self.fingerprint_size < 16:
            yield ("fingerprint_size",), "at least 16 bytes"
        if self.max_log_size < 1:
            yield ("max_log_size",), "more than nothing"
        if self.delete_after_read and self.start_at == "end":
            yield ("delete_after_read",), "cannot be used with start_at: end"
        yield from self._check_text()
        yield from self._check_ordering()
        for path, message in problems(self.operators):
            yield ("operators", *path), message

    def _check_text(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        lines = self.multiline
        if lines.line_start_pattern and lines.line_end_pattern:
            yield ("multiline",), "only one of line_start_pattern and line_end_pattern"
        for name in ("line_start_pattern", "line_end_pattern"):
            pattern = getattr(lines, name)
            if pattern and self.encoding in NOP:
                yield ("multiline", name), "not with this encoding"
            elif pattern and (wrong := regex_problem(pattern)):
                yield ("multiline", name), wrong
        try:
            codec(self.encoding)
        except LookupError:
            yield ("encoding",), f'no encoding is called "{self.encoding}"'

    def _check_ordering(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        order = self.ordering_criteria
        for name in ("regex", "group_by"):
            if wrong := regex_problem(getattr(order, name)):
                yield ("ordering_criteria", name), wrong
        for number, sort in enumerate(order.sort_by):
            where = ("ordering_criteria", "sort_by", number)
            if sort.sort_type != "mtime" and not order.regex:
                yield where, "ordering_criteria.regex has to name what is sorted by"
            if sort.sort_type != "mtime" and not sort.regex_key:
                yield where, '"regex_key" is missing'
            if sort.sort_type == "timestamp" and not sort.layout:
                yield where, '"layout" is missing'


#: Names of encodings that leave bytes alone.
NOP: Final = ("nop",)
_ENCODINGS: Final = {
    "": "utf-8", "utf8": "utf-8", "utf-8": "utf-8", "utf8-raw": "utf-8", "utf-8-raw": "utf-8", "nop": "latin-1",
    "ascii": "utf-8", "us-ascii": "utf-8",
    "utf-16": "utf-16-le", "utf16": "utf-16-le", "utf-16le": "utf-16-le", "utf16le": "utf-16-le",
    "utf-16be": "utf-16-be", "utf16be": "utf-16-be",
}  # fmt: skip


def codec(name: str) -> str:
    """Python's name of an encoding.

    Raises:
        LookupError: there is none.
    """
    known = _ENCODINGS.get(name.lower())
    return known or codecs.lookup(name).name


def regex_problem(pattern: str) -> str:
    """Return what is wrong with a regular expression; nothing for a good one."""
    try:
        re2.compile(pattern)
    except re2.error as error:
        return f"no regular expression: {error.args[0] if error.args else error}"
    return ""
