"""A bundle diagnosed again from what was kept of it gives the same document."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest

from tracecore.archive.dataset import Archive, record_of, result_of
from tracecore.archive.record import keep, rediagnose
from tracecore.archive.tasks import TaskLimits, parts_of
from tracecore.diagnose import facts as reading
from tracecore.diagnose.offline import diagnose, join, survey

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
RECORDED = sorted(path.parent for path in EXAMPLES.glob("incidents*/*/truth.json"))


def kept_and_rediagnosed(bundle: Path, folder: Path) -> tuple[Any, Any]:
    """The documents of a bundle before and after it was kept in an archive."""
    found = survey([bundle])
    facts, counters = join(found, reading.gather(found.bundle))
    archive = Archive.create(folder)
    archive.append([result_of(keep(found.bundle, facts, counters), str(bundle), "")])
    (stored,) = archive.results([str(bundle)])
    record, unknown = record_of(stored)
    assert unknown == 0
    return stored.document, rediagnose(record).document()


def check(bundle: Path, folder: Path) -> None:
    expected = diagnose([bundle]).document()
    before, after = kept_and_rediagnosed(bundle, folder)
    assert before == expected
    assert after == expected


@pytest.mark.parametrize("bundle", RECORDED[::40], ids=lambda path: path.name)
def test_stored_facts_give_the_same_diagnosis(bundle: Path, tmp_path: Path) -> None:
    check(bundle, tmp_path / "archive")


@pytest.mark.integration
@pytest.mark.parametrize("bundle", RECORDED, ids=lambda path: path.name)
def test_stored_facts_of_every_recording_give_the_same_diagnosis(bundle: Path, tmp_path: Path) -> None:
    check(bundle, tmp_path / "archive")


@pytest.mark.integration
def test_shared_data_gives_the_same_diagnosis(shared_data: Path, tmp_path: Path) -> None:
    bundles = [path for path in sorted((shared_data / "recorded").iterdir()) if path.is_dir()]
    bundles += [path for path in sorted((shared_data / "fr_gloo").iterdir()) if path.is_dir()]
    assert len(bundles) > 50
    for number, bundle in enumerate(bundles):
        check(bundle, tmp_path / str(number))


@pytest.mark.parametrize("name", ["nccl_hang_one_rank_missing", "assert_in_one"])
def test_an_archive_file_gives_the_same_diagnosis(name: str, tmp_path: Path) -> None:
    packed = tmp_path / "bundle.tar.gz"
    with tarfile.open(packed, "w:gz") as tar:
        tar.add(EXAMPLES / "incidents" / name, name)
    check(packed, tmp_path / "archive")


def test_a_long_log_is_kept_in_pieces_with_the_same_line_numbers(tmp_path: Path) -> None:
    """The text kept of a log is far shorter than the log, and quotes still cite the right lines."""
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    steps = "".join(f"2026-11-15 10:{n // 600:02d}:{n // 10 % 60:02d} INFO step {n} loss 1.0\n" for n in range(30_000))
    crash = (
        "Traceback (most recent call last):\n"
        '  File "/app/train.py", line 7, in <module>\n    main()\n'
        "ValueError: bad batch\n"
    )
    (bundle / "rank0.log").write_text(steps + crash + steps[:9000])
    (bundle / "rank1.log").write_text(steps)
    (bundle / "exit_codes.json").write_text('{"0": 1, "1": null}')
    check(bundle, tmp_path / "archive")
    found = survey([bundle])
    facts, counters = join(found, reading.gather(found.bundle))
    kept = keep(found.bundle, facts, counters)
    text = sum(len(piece.data) for stream in kept.streams for piece in stream.pieces)
    assert 0 < text < 800_000 < sum(stream.size or 0 for stream in kept.streams)
    without = result_of(kept, "", "")
    for stream in without.row["streams"]:
        stream["pieces"] = []
    assert rediagnose(record_of(without)[0]).document() != kept.document


def test_secrets_are_not_kept(tmp_path: Path) -> None:
    secret = "hf_" + "Ab3dEf6hIj9kLm2nOp5q"
    password = "correct-Horse7battery"
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "rank0.log").write_text(
        f"2026-11-15 10:00:01 INFO login with {secret}\n2026-11-15 10:00:02 step 1 loss 2.0\n"
        f"Traceback (most recent call last):\n"
        f'  File "/app/train.py", line 7, in <module>\n    login(password="{password}")\n'
        f"RuntimeError: token={secret} was refused by https://me:{password}@host/x\n"
    )
    (bundle / "exit_codes.json").write_text('{"0": 1}')
    check(bundle, tmp_path / "archive")
    archive = Archive(tmp_path / "archive")
    kept = repr([(stored.row, stored.facts) for stored in archive.results()])
    assert "RuntimeError" in kept
    assert "[redacted]" in kept
    assert secret not in kept
    assert password not in kept


@pytest.mark.parametrize("name", ["nccl_hang_one_rank_missing", "checkpoint_full"])
def test_members_of_one_archive_stay_in_one_part(name: str, tmp_path: Path) -> None:
    packed = tmp_path / "bundle.tar"
    with tarfile.open(packed, "w") as tar:
        tar.add(EXAMPLES / "incidents" / name, name)
    limits = TaskLimits(large_files=1, large_bytes=1)
    assert len(parts_of(survey([packed]).bundle.streams, limits)) == 1
