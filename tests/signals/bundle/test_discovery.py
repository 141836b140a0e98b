"""Finding and recognising the files of a bundle, in directories and archives, hostile ones included."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import random
import tarfile
import time
import zipfile
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tracecore.signals.bundle import archive, identity
from tracecore.signals.bundle.archive import BundleLimits
from tracecore.signals.bundle.discovery import Bundle, discover
from tracecore.signals.bundle.reading import read, records
from tracecore.signals.bundle.recognition import recognise
from tracecore.signals.logs.selector import SelectAll
from tracecore.signals.stream import BASE_TIME, Counters

LOG = b"2026-11-15 01:37:04 step 1 loss 0.5\n2026-11-15 01:37:05 step 2 loss 0.4\n"
DMESG = b"[    1.000000] NVRM: loaded\n[    2.000000] NVRM: Xid (PCI:0000:3b:00): 79\n"
CODES = b'{"0": 1, "1": null}'


def tree() -> dict[str, bytes]:
    return {"run/rank0.log": LOG, "run/rank1.log": LOG * 2, "run/dmesg.txt": DMESG, "run/exit_codes.json": CODES}


def tar(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as file:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    return out.getvalue()


def zipped(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in files.items():
            file.writestr(name, data)
    return out.getvalue()


def contents(bundle: Bundle) -> list[tuple[str, str, list[object]]]:
    """Name, format and records (without the path) of every stream."""
    found = []
    for stream in bundle.streams:
        records = [
            (r["log"], r["source"].offset, r["source"].line)
            for r in read(stream, SelectAll(), bundle.clock, Counters())
        ]
        found.append((stream.path.rsplit("/", 1)[-1], stream.format, records))
    return sorted(found, key=lambda entry: entry[0])  # type: ignore[return-value]


@pytest.fixture
def plain(tmp_path: Path) -> Bundle:
    for name, data in tree().items():
        path = tmp_path / "plain" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (tmp_path / "plain" / "run" / "truth.json").write_text('{"root": "secret"}')
    return discover([tmp_path / "plain"])


def test_a_directory(plain: Bundle) -> None:
    assert [(s.path.rsplit("/", 1)[-1], s.format, s.layer) for s in plain.streams] == [
        ("dmesg.txt", "dmesg", "kernel"),
        ("exit_codes.json", "exit_codes", "scheduler"),
        ("rank0.log", "text", "stdout"),
        ("rank1.log", "text", "stdout"),
    ]
    assert plain.skipped == []
    assert plain.clock.exact
    assert plain.clock.latest == 1_794_706_625_000_000_000
    assert plain.layers()["stdout"] == 2
    assert plain.layers()["metrics"] == 0


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("b.tar", tar(tree())),
        ("b.tar.gz", gzip.compress(tar(tree()))),
        ("b.tgz", gzip.compress(tar(tree()))),
        ("b.tar.xz", lzma.compress(tar(tree()))),
        ("b.tar.bz2", bz2.compress(tar(tree()))),
        ("b.tar.zst", zstandard.compress(tar(tree()))),
        ("b.zip", zipped(tree())),
        ("no-suffix-at-all", gzip.compress(tar(tree()))),
        ("nested.zip", zipped({"inner.tar.gz": gzip.compress(tar(tree()))})),
        ("nested.tar", tar({"inner.zip": zipped(tree())})),
        ("logs.tar", tar({name + ".gz": gzip.compress(data) for name, data in tree().items()})),
    ],
)
def test_an_archive_gives_what_the_directory_gives(plain: Bundle, tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    bundle = discover([tmp_path / name])
    assert bundle.skipped == []
    expected = [(n + ".gz" if name == "logs.tar" else n, f, r) for n, f, r in contents(plain)]
    assert contents(bundle) == expected
    # Members may be opened in any order, more than once.
    for stream in reversed(bundle.streams):
        with stream.open() as file:
            assert file.read() == tree()["run/" + stream.path.rsplit("/", 1)[-1].removesuffix(".gz")]
    assert all(stream.path.startswith(f"{tmp_path / name}!/") for stream in bundle.streams)
    # Another process may read them.
    again = pickle.loads(pickle.dumps(bundle))
    assert contents(again) == expected


@pytest.mark.parametrize(
    ("suffix", "pack"), [("gz", gzip.compress), ("xz", lzma.compress), ("zst", zstandard.compress)]
)
def test_one_compressed_log(tmp_path: Path, suffix: str, pack: object) -> None:
    path = tmp_path / f"rank3.log.{suffix}"
    path.write_bytes(pack(LOG * 5000))  # type: ignore[operator]
    (stream,) = discover([path]).streams
    assert (stream.format, stream.resource) == ("text", {"gen_ai.training.rank": 3})
    with stream.open() as file:
        assert b"".join(iter(lambda: file.read(1 << 16), b"")) == LOG * 5000


def test_names_that_lead_out_are_not_opened(tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as file:
        for name in ("../../etc/passwd", "/etc/shadow", "ok/rank0.log"):
            info = tarfile.TarInfo(name)
            info.size = len(LOG)
            file.addfile(info, io.BytesIO(LOG))
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
            info = tarfile.TarInfo("link")
            info.type, info.linkname = kind, "/etc/passwd"
            file.addfile(info)
    (tmp_path / "evil.tar").write_bytes(out.getvalue())
    (tmp_path / "evil.zip").write_bytes(zipped({"../x.log": LOG, "fine.log": LOG}))
    bundle = discover([tmp_path])
    assert [s.path.rsplit("!/", 1)[-1] for s in bundle.streams] == ["ok/rank0.log", "fine.log"]
    assert len(bundle.skipped) == 7
    assert all(s.reason.startswith(("a name that", "a link or")) for s in bundle.skipped)


def test_links_out_of_the_directory_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret.log").write_bytes(LOG)
    inside = tmp_path / "bundle"
    inside.mkdir()
    (inside / "rank0.log").write_bytes(LOG)
    (inside / "same.log").symlink_to("rank0.log")
    (inside / "out.log").symlink_to(tmp_path / "secret.log")
    (inside / "loop").symlink_to(inside)
    os.mkfifo(inside / "pipe")
    bundle = discover([inside])
    assert sorted(Path(s.path).name for s in bundle.streams) == ["rank0.log", "same.log"]
    assert {(Path(s.path).name, s.reason.partition(":")[0]) for s in bundle.skipped} >= {
        ("out.log", "a link that leads out of the directory"),
        ("pipe", "a pipe"),
    }


def test_a_bomb_is_left_and_the_rest_is_read(tmp_path: Path) -> None:
    (tmp_path / "bomb.log.gz").write_bytes(gzip.compress(b"a line of a bomb\n" * 200_000))
    (tmp_path / "bomb.tar.xz").write_bytes(lzma.compress(tar({"a.log": b"0 " * 3_000_000, "b.log": LOG})))
    (tmp_path / "bomb.zip").write_bytes(zipped({"a.log": b"0 " * 3_000_000}))
    (tmp_path / "sum.zip").write_bytes(zipped({f"{i}.log": b"0 " * 30_000 for i in range(10)}))
    (tmp_path / "many.zip").write_bytes(zipped({f"{i}.log": LOG for i in range(30)}))
    (tmp_path / "rank0.log").write_bytes(LOG)
    limits = BundleLimits(ratio=20, ratio_from=100_000, members=20)
    bundle = discover([tmp_path], limits)
    # Of many that are too much together, the first are read.
    assert {s.path.rpartition("!/")[2] for s in bundle.streams if "sum.zip" not in s.path} == {
        str(tmp_path / "rank0.log")
    }
    reasons = {Path(s.path.split("!/")[0]).name: s.reason for s in bundle.skipped}
    assert "expands to more than" in reasons["bomb.log.gz"]
    assert "expands to more than" in reasons["bomb.tar.xz"]
    assert "expands from" in reasons["bomb.zip"]
    assert "expands from" in reasons["sum.zip"]
    assert "more than 20 members" in reasons["many.zip"]


def test_archives_are_entered_so_deep_and_no_deeper(tmp_path: Path) -> None:
    data = LOG
    for level in range(6):
        data = zipped({f"{level}.zip" if level else "a.log": data})
    (tmp_path / "deep.zip").write_bytes(data)
    bundle = discover([tmp_path])
    assert bundle.streams == []
    assert [s.reason for s in bundle.skipped] == ["an archive more than 4 deep"]


def test_a_log_in_a_tar_in_a_zip_is_read(tmp_path: Path) -> None:
    packed = gzip.compress(LOG)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        info = tarfile.TarInfo("rank0.log.gz")
        info.size = len(packed)
        tar.addfile(info, io.BytesIO(packed))
    (tmp_path / "a.zip").write_bytes(zipped({"logs.tar": archive.getvalue()}))
    bundle = discover([tmp_path])
    assert [stream.path for stream in bundle.streams] == [str(tmp_path / "a.zip!/logs.tar!/rank0.log.gz")]
    assert bundle.skipped == []


def test_a_tar_that_claims_a_terabyte_takes_no_time(tmp_path: Path) -> None:
    info = tarfile.TarInfo("rank0.log")
    info.size = 1 << 40
    (tmp_path / "a.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + LOG)
    begin = time.process_time()
    bundle = discover([tmp_path])
    assert time.process_time() - begin < 5.0
    assert len(bundle.streams) == 1
    assert any("unexpected end of data" in skipped.reason for skipped in bundle.skipped)


def test_what_cannot_be_read_is_listed_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "empty.json").write_bytes(b"")
    (tmp_path / "silent.log").write_bytes(b"")
    (tmp_path / "model.bin").write_bytes(bytes(range(256)) * 100)
    (tmp_path / "cut.tar.gz").write_bytes(gzip.compress(tar(tree()))[:200])
    (tmp_path / "cut.log.gz").write_bytes(gzip.compress(random.Random(7).randbytes(50_000))[:1000])
    (tmp_path / "broken.zip").write_bytes(b"PK\x03\x04 and then nothing")
    (tmp_path / "rank0.log").write_bytes(LOG)
    bundle = discover([tmp_path])
    # Of the archive that was cut, what is there is read.
    assert [Path(s.path).name for s in bundle.streams if "cut.tar.gz" not in s.path] == ["rank0.log", "silent.log"]
    reasons = {Path(s.path.split("!/")[0]).name: s.reason for s in bundle.skipped}
    assert reasons["empty.json"] == "empty"
    assert "binary" in reasons["model.bin"]
    assert set(reasons) == {"empty.json", "model.bin", "cut.tar.gz", "cut.log.gz", "broken.zip"}
    assert all(reasons.values())


def test_a_missing_path_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        discover([tmp_path / "nothing"])


def test_time_without_a_year_is_settled_by_the_rest_of_the_bundle(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"E1115 01:37:09.5 x.cpp:1] boom\n")
    assert discover([tmp_path], now=1_794_800_000_000_000_000).clock.latest == 1_794_706_629_500_000_000
    (tmp_path / "b.log").write_bytes(LOG.replace(b"2026", b"2031"))
    assert discover([tmp_path]).clock.latest == 1_952_473_029_500_000_000


def test_a_bundle_without_any_time_has_a_fixed_one(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"hello\n")
    clock = discover([tmp_path]).clock
    assert (clock.latest, clock.exact) == (BASE_TIME, False)


def test_every_recorded_incident_is_recognised(incidents: Path) -> None:
    for folder in sorted(incidents.iterdir()):
        bundle = discover([folder])
        assert bundle.skipped == []
        for stream in bundle.streams:
            name = Path(stream.path).name
            # A pod's log is as the container runtime writes it.
            log = "cri" if stream.format == "cri" and "/pods/" in stream.path else "text"
            expected = {"dmesg.txt": "dmesg", "exit_codes.json": "exit_codes"}.get(
                name, "flight_recorder" if name.startswith("nccl_trace") else log
            )
            assert (stream.path, stream.format) == (stream.path, expected)
        assert not any("truth" in stream.path for stream in bundle.streams)


def test_local_ranks_are_global_on_one_node_only(tmp_path: Path) -> None:
    def write(node: str) -> None:
        for rank in range(2):
            path = tmp_path / node / "none_abc" / "attempt_1" / str(rank) / "stderr.log"
            path.parent.mkdir(parents=True)
            path.write_bytes(LOG)
            (path.parent.parent.parent / "attempt_0" / str(rank)).mkdir(parents=True)
            (path.parent.parent.parent / "attempt_0" / str(rank) / "stderr.log").write_bytes(LOG)

    write("first")
    assert {s.resource.get("gen_ai.training.rank") for s in discover([tmp_path]).streams} == {0, 1}
    assert {s.resource.get("tracecore.attempt") for s in discover([tmp_path]).streams} == {0, 1}
    # What the launcher wrote of all of them beside it is the same node's.
    (tmp_path / "out.log").write_text("[default0]:step 1\n[default1]:step 1\n")
    assert {s.resource.get("gen_ai.training.rank") for s in discover([tmp_path]).streams} == {None, 0, 1}
    (tmp_path / "out.log").unlink()
    write("second")
    bundle = discover([tmp_path])
    assert {s.resource.get("gen_ai.training.rank") for s in bundle.streams} == {None}
    assert {s.resource.get("gen_ai.training.local_rank") for s in bundle.streams} == {0, 1}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("b/rank3.log", {"gen_ai.training.rank": 3}),
        ("b/rank_12/stdout.log", {"gen_ai.training.rank": 12}),
        ("b/worker-3.out", {"gen_ai.training.rank": 3}),
        ("b/nccl_trace_rank_7", {"gen_ai.training.rank": 7}),
        ("b/slurm-123.out", {"gen_ai.training.job_id": "123"}),
        ("b/slurm-123_4.out", {"gen_ai.training.job_id": "123_4"}),
        ("b/node-7/dmesg.txt", {"host.name": "node-7"}),
        ("b/dmesg-node7.txt", {"host.name": "node7"}),
        ("b/dcgmi-diag-dgx-b12.txt", {"host.name": "dgx-b12"}),
        ("b/gpu-a17.dmesg", {"host.name": "gpu-a17"}),
        ("b/out.log", {}),
        ("b/frank1.log", {}),
        (
            "x/var/log/pods/ml_trainer-0_0a1b-2c/main/2.log",
            {
                "k8s.namespace.name": "ml",
                "k8s.pod.name": "trainer-0",
                "k8s.pod.uid": "0a1b-2c",
                "k8s.container.name": "main",
                "k8s.container.restart_count": "2",
                "tracecore.attempt": 2,
            },
        ),
        (
            "pods/ml_trainer-0_0a1b-2c/main/0.log.20261115-013704.gz",
            {"k8s.pod.name": "trainer-0", "tracecore.attempt": 0},
        ),
        ("x/worker_1.log", {"gen_ai.training.rank": 1}),
        ("x/worker_1_0.log", {}),
        (
            "none_x/attempt_1/3/stderr.log",
            {"tracecore.attempt": 1, "gen_ai.training.local_rank": 3, "log.iostream": "stderr"},
        ),
    ],
)
def test_what_a_path_says(path: str, expected: dict[str, object]) -> None:
    found = identity.of(path)
    assert {key: found.get(key) for key in expected} == expected
    assert expected or found == {}


@pytest.mark.parametrize(
    ("text", "format"),
    [
        ("2026-11-15T01:37:04.1Z stdout F hello\n", "cri"),
        ("2026-11-15T01:37:04.1+01:00 stderr P hello\n", "cri"),
        ('{"log":"x\\n","stream":"stdout","time":"2026-11-15T01:37:04.1Z"}\n', "docker"),
        ('{"log": "x\\n", "stream": "stdout", "time": "2026-11-15T01:37:04.1Z"}\n', "docker"),
        ('{"stream":"stderr","log":"x\\n","time":"2026-11-15T01:37:04.1Z"}\n', "docker"),
        ('{"time": "2026-11-15T01:37:04.1Z", "stream": "stdout", "log": "x\\n"}\n', "docker"),
        ('{"time": "2026-11-15T01:37:04.1Z", "level": "info", "log": "x"}\n', "text"),
        ('{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "Pod"}]}', "kubernetes_json"),
        ("apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Event\n", "kubernetes_yaml"),
        ("Nov 15 01:37:04 n1 systemd[1]: Started.\nNov 15 01:37:04 n1 kernel: x\n", "syslog"),
        ("2026-11-15T01:37:04Z INFO trainer: step 1\n2026-11-15T01:37:05Z INFO trainer: step 2\n", "text"),
        ("2026-11-15T01:37:04Z node1 trainer: step 1\n2026-11-15T01:37:05Z node1 trainer: step 2\n", "text"),
        ("2026-11-15 01:37:04 INFO trainer: step 1\n", "text"),
        ("NVRM: Xid (PCI:0000:63:00): 31\npcieport 0000:62:00.0: AER: device recovery failed\n", "dmesg"),
        ("[1.25] step\n[1.50] step\n", "text"),
        ("LAST SEEN   TYPE      REASON    OBJECT   MESSAGE\n5m          Warning   x   pod/a   b\n", "kubernetes_table"),
        ("NAMESPACE   LAST SEEN   TYPE   REASON   OBJECT   MESSAGE\n", "kubernetes_table"),
        ("root@c1:~# kubectl get events -n $ns\nLAST SEEN   TYPE   REASON   OBJECT   MESSAGE\n", "kubernetes_table"),
        (" k get pods\nNAME     READY   STATUS    RESTARTS   AGE\n", "kubernetes_pods"),
        ("k means clustering\nNAME     READY   STATUS    RESTARTS   AGE\n", "text"),
        (
            "  1m\t\t1m\t\t1\t{kubelet n-0ix5}\t\t\tWarning\t\tFailedMount\tUnable to mount volumes\n",
            "kubernetes_table",
        ),
        ("NAME      READY   STATUS    RESTARTS   AGE\ntrain-0   0/1     Evicted   0          3h\n", "kubernetes_pods"),
        ("train-0   0/1     Evicted   0          3h\n", "kubernetes_pods"),
        ("  Warning  Evicted  9s  kubelet  Pod exceeds its limit\n", "kubernetes_table"),
        ("Name:         a\nNamespace:    b\nStatus:       Running\n", "kubernetes_describe"),
        ("# HELP up x\n# TYPE up gauge\nup 1\n", "prometheus"),
        ('DCGM_FI_DEV_GPU_TEMP{gpu="0"} 61\n', "prometheus"),
        ("JobID|JobName|State|ExitCode\n1|a|FAILED|1:0\n", "sacct"),
        ("JobID           JobName      State\n------------ ---------- ----------\n1  a  FAILED\n", "sacct"),
        ("JobId=12 JobName=x\n   JobState=FAILED Reason=None\n", "scontrol"),
        ("NodeName=n1 Arch=x86_64\n   State=DOWN\n", "scontrol"),
        ('{"meta": {"slurm": {}}, "jobs": [{"job_id": 1}]}', "sacct_json"),
        ('{"0": 1, "1": null, "2": -9}', "exit_codes"),
        ('{"message": {"message": "x", "extraInfo": {"py_callstack": "", "timestamp": "1"}}}', "elastic_error"),
        ('{"version": "2.10", "pg_config": {}, "entries": []}', "flight_recorder"),
        ("step 1 loss 0.5\nstep 2 loss 0.4\n", "text"),
        ('{"step": 1, "loss": 0.5}\n{"step": 2, "loss": 0.4}\n', "text"),
        ("epoch 3\nloss 0.5\nacc 0.7\n", "text"),
    ],
)
def test_content_decides(text: str, format: str) -> None:
    found = recognise(text.encode(), b"", "whatever.txt", True)
    assert (found.format, found.reason) == (format, "")


def test_a_manifest_is_no_evidence() -> None:
    manifest = b"apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata:\n  name: x\n"
    assert recognise(manifest, b"", "job.yaml", True).format == ""


def test_a_name_never_overrules_the_content() -> None:
    cri = b"2026-11-15T01:37:04.1Z stdout F hello\n"
    assert recognise(cri, b"", "dmesg.txt", True).format == "cri"
    assert recognise(b"no stamps here\n", b"", "dmesg.txt", True).format == "dmesg"
    assert recognise(json.dumps({"rank0": 1}).encode(), b"", "exit_codes.json", True).format == "exit_codes"


def test_task_labels_are_seen_in_the_whole_file_only() -> None:
    labelled = b"".join(b"%d: step %d\n" % (i % 4, i) for i in range(20))
    assert recognise(labelled, b"", "slurm-1.out", True).wrapping
    assert not recognise(b"1: x\nstep\nloss\nmore\nlines\n", b"", "out", True).wrapping


@given(
    st.binary(max_size=600), st.sampled_from(["a.log", "dmesg.txt", "x.prom", "exit_codes.json", "nccl_trace_rank_0"])
)
def test_any_bytes_have_an_answer(data: bytes, name: str) -> None:
    found = recognise(data, b"", name, True)
    assert bool(found.format) != bool(found.reason)


@given(st.text(max_size=60))
def test_any_member_name_stays_inside(name: str) -> None:
    safe = archive.safe_name(name)
    assert safe is None or not (safe.startswith("/") or ".." in safe.split("/"))


def test_the_object_of_a_pod_says_whose_its_log_is(tmp_path: Path) -> None:
    log = tmp_path / "var/log/pods/ml_trainer-3_0a1b/main/0.log"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"2026-11-15T01:37:04.1Z stdout F hello\n")
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "trainer-3",
            "namespace": "ml",
            "labels": {"gen_ai.training.io/rank": "24", "job-name": "j"},
        },
        "spec": {"nodeName": "node-7"},
    }
    (tmp_path / "pods.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [pod]}))
    (stream,) = discover([tmp_path]).of("cri")
    assert stream.resource["gen_ai.training.rank"] == 24
    assert stream.resource["gen_ai.training.job_id"] == "j"
    assert stream.resource["k8s.node.name"] == "node-7"
    (tmp_path / "pods.json").write_text('{"apiVersion": "v1", "kind": ')
    (stream,) = discover([tmp_path]).of("cri")
    assert "k8s.node.name" not in stream.resource


def test_a_damaged_stream_is_listed_and_the_next_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.log.gz").write_bytes(gzip.compress(random.Random(7).randbytes(400).hex().encode() * 400)[:-300])
    (tmp_path / "exit_codes.json").write_text('{"0": 1')
    (tmp_path / "rank0.log").write_bytes(LOG)
    bundle = discover([tmp_path])
    counters = Counters()
    found = [record for _, record in records(bundle, lambda stream: SelectAll(), counters)]
    assert [r["log"]["body"] for r in found if r["source"].path.endswith("rank0.log")] == LOG.decode().splitlines()
    coverage = bundle.coverage(counters)
    assert {Path(s["path"]).name for s in coverage["skipped"]} == {"a.log.gz", "exit_codes.json"}
    assert coverage["bytes_read"] >= len(LOG)
    assert coverage["layers"]["stdout"] >= 1


def test_what_the_user_named_is_nobodys_rank(tmp_path: Path) -> None:
    place = tmp_path / "crash_of_rank_3"
    (place / "rank_1").mkdir(parents=True)
    (place / "out.log").write_bytes(LOG)
    (place / "rank_1" / "stdout.log").write_bytes(LOG)
    ranks = {Path(s.path).name: s.resource.get("gen_ai.training.rank") for s in discover([place]).streams}
    assert ranks == {"out.log": None, "stdout.log": 1}


@pytest.mark.parametrize(
    ("encoding", "words"),
    [
        ("utf-8", "step \u2713 \x01"),
        ("latin-1", "Größe à Zürich"),
        ("gbk", "训练步骤损失"),
        ("shift-jis", "学習ステップ"),
        ("koi8-r", "Ошибка обучения"),
    ],
)
def test_text_in_another_encoding_is_text(encoding: str, words: str) -> None:
    line = f"{words} step 3 loss 2.1\n".encode(encoding)
    assert recognise(line * 20, b"", "rank0.log", True).format == "text"


def test_bytes_without_meaning_are_no_text_however_few() -> None:
    drawn = [random.Random(seed).randbytes(96) for seed in range(300)]
    assert {recognise(data, b"", "rank0.log", True).format for data in drawn} == {""}
