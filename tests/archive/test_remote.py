"""Bundles at URLs give what the same files on disk give."""

from __future__ import annotations

import io
import json
import pickle
import tarfile
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from click.testing import CliRunner

from tracecore.archive.bundles import fingerprint, listed
from tracecore.cli.main import root
from tracecore.diagnose.offline import diagnose
from tracecore.signals.bundle.discovery import discover
from tracecore.signals.bundle.remote import RemoteError

BUNDLE = Path(__file__).resolve().parents[2] / "examples/incidents/nccl_hang_one_rank_missing"


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    """A file system in memory with a directory, an archive and a lone log of one recording."""
    system = fsspec.filesystem("memory")
    for path in BUNDLE.rglob("*"):
        if path.is_file():
            system.pipe(f"/b/2026/{BUNDLE.name}/{path.relative_to(BUNDLE)}", path.read_bytes())
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        tar.add(BUNDLE, BUNDLE.name)
    system.pipe("/b/2026/packed.tar.gz", packed.getvalue())
    yield system
    system.rm("/b", recursive=True)


def test_a_directory_at_a_url(memory: fsspec.AbstractFileSystem) -> None:
    url = f"memory:///b/2026/{BUNDLE.name}"
    found = json.dumps(diagnose([url]).document())
    assert url in found
    # Nodes without a name are told apart by paths, so ids that hold a path are the only difference.
    assert json.loads(found.replace(url, str(BUNDLE)))["incidents"] == diagnose([BUNDLE]).document()["incidents"]


def test_an_archive_at_a_url(memory: fsspec.AbstractFileSystem, tmp_path: Path) -> None:
    (tmp_path / "packed.tar.gz").write_bytes(memory.cat("/b/2026/packed.tar.gz"))
    url = "memory:///b/2026/packed.tar.gz"
    found = json.dumps(diagnose([url]).document()).replace(url, str(tmp_path / "packed.tar.gz"))
    assert json.loads(found)["incidents"] == diagnose([tmp_path / "packed.tar.gz"]).document()["incidents"]


def test_streams_travel_to_other_processes(memory: fsspec.AbstractFileSystem) -> None:
    bundle = discover([f"memory:///b/2026/{BUNDLE.name}", "memory:///b/2026/packed.tar.gz"])
    assert len(bundle.streams) > 10
    for stream in bundle.streams:
        copy = pickle.loads(pickle.dumps(stream))
        with stream.open() as one, copy.open() as other:
            assert one.read() == other.read()


def test_urls_are_listed_and_fingerprinted(memory: fsspec.AbstractFileSystem) -> None:
    both = [f"memory:///b/2026/{BUNDLE.name}", "memory:///b/2026/packed.tar.gz"]
    assert listed(["memory:///b/2026"], each=True) == both
    assert listed(["memory:///b/2026/*"]) == both
    assert listed(["memory:///b/*/packed*"]) == both[1:]
    assert listed(["memory:///b/none*"]) == []
    before = fingerprint(both[0])
    assert before == fingerprint(both[0]) != ""
    memory.pipe(f"/b/2026/{BUNDLE.name}/more.log", b"step 1\n")
    assert fingerprint(both[0]) != before


def test_a_file_url_is_a_path() -> None:
    result = CliRunner().invoke(root, ["diagnose", f"file://{BUNDLE}", "-o", "json"])
    assert json.loads(result.stdout) == diagnose([str(BUNDLE)]).document()
    assert listed([f"file://{BUNDLE}"]) == [str(BUNDLE)]


@pytest.mark.parametrize(
    ("url", "said"), [("s3://b/x", "s3fs"), ("gs://b/x", "gcsfs"), ("abfs://b/x", "adlfs"), ("nosuch://x", "not known")]
)
def test_what_is_missing_is_named(url: str, said: str) -> None:
    with pytest.raises(RemoteError, match=said):
        diagnose([url])
    result = CliRunner().invoke(root, ["diagnose", url])
    assert result.exit_code == 2
    assert said in result.output


def test_a_url_with_nothing_behind_it() -> None:
    with pytest.raises(FileNotFoundError):
        diagnose(["memory:///nothing/here"])
    result = CliRunner().invoke(root, ["diagnose", "memory:///nothing/here"])
    assert result.exit_code == 2
    assert "there is no memory:///nothing/here" in result.output
