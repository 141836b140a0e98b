"""Files in which somebody copied the output of several programs together."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracecore.diagnose.offline import diagnose
from tracecore.signals.bundle import pasted
from tracecore.signals.bundle.discovery import discover

OUTPUT = "step 1200 | loss 2.113 | lr 1e-4\nstep 1201 | loss 2.101 | lr 1e-4\n"
XID = "[81234.123456] NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.\n"
KILLED = (
    "[Mon Mar  4 11:22:33 2024] Out of memory: Killed process 25315 (python3) total-vm:53312244kB, "
    "anon-rss:31451456kB, file-rss:74816kB, shmem-rss:12296kB, UID:1000 pgtables:69068kB oom_score_adj:0\n"
)
NODES = (
    "NAME    STATUS    ROLES   AGE  VERSION\n"
    "node-4  Ready     <none>  92d  v1.28.5\n"
    "node-5  NotReady  <none>  92d  v1.28.5\n"
)


def _streams(tmp_path: Path, text: str) -> list[tuple[str, str]]:
    (tmp_path / "issue.txt").write_text(text)
    return [(stream.format, stream.layer) for stream in discover([tmp_path]).streams]


@pytest.mark.parametrize(
    ("text", "root"),
    [
        (f"{OUTPUT}RuntimeError: CUDA error: unspecified launch failure\n$ sudo dmesg | tail -1\n{XID}", "gpu_fault"),
        (f"{OUTPUT}Killed\n\ndmesg says:\n\n```\n{KILLED}```\n", "host_oom"),
        (
            f"{OUTPUT}Killed\nroot@gpu-4:~# journalctl -k\nMar 04 11:22:33 gpu-4 kernel: {KILLED.partition('] ')[2]}",
            "host_oom",
        ),
    ],
)
def test_the_kernels_word_counts_in_the_middle_of_a_programs_output(tmp_path: Path, text: str, root: str) -> None:
    (tmp_path / "issue.txt").write_text(text)
    (incident, *_) = diagnose([tmp_path]).document()["incidents"]
    assert incident["root_cause"]["pattern"] == root


def test_a_part_keeps_its_place_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "issue.txt").write_text(f"{OUTPUT}$ dmesg\n{XID}")
    (incident, *_) = diagnose([tmp_path]).document()["incidents"]
    (quote,) = incident["quotes"]
    assert [(line["number"], line["text"]) for line in quote["lines"]] == [(4, XID.strip())]


def test_a_table_below_its_command_is_read_as_one(tmp_path: Path) -> None:
    assert _streams(tmp_path, f"{OUTPUT}$ kubectl get nodes\n{NODES}$ echo done\n") == [
        ("text", "stdout"),
        ("kubernetes_nodes", "kubernetes"),
    ]


def test_each_table_of_several_commands_is_read(tmp_path: Path) -> None:
    pods = "NAME   READY   STATUS   RESTARTS   AGE   IP   NODE\np-0   1/1   Running   0   1h   10.0.0.1   node-4\n"
    assert _streams(tmp_path, f"$ kubectl get pods -o wide\n{pods}$ kubectl get nodes\n{NODES}") == [
        ("kubernetes_pods", "kubernetes"),
        ("kubernetes_nodes", "kubernetes"),
    ]


SYSTEM = "Mar 04 11:22:33 gx-4 kernel: eth0: link up\nMar 04 11:22:35 gx-4 kernel: eth0: link down\n"


@pytest.mark.parametrize(
    ("text", "streams"),
    [
        (
            f"### /var/log/messages (gx-4)\n{SYSTEM}\n### run.out (rank 3, step 9)\n{OUTPUT}",
            [("syslog", {"host.name": "gx-4"}), ("text", {"gen_ai.training.rank": 3})],
        ),
        (
            f"== kernel log on gx-4 ==\n{SYSTEM}== logs/rank7.err ==\n{OUTPUT}",
            [("syslog", {"host.name": "gx-4"}), ("text", {"gen_ai.training.rank": 7})],
        ),
        (
            f"ops@gx-4:~$ sudo dmesg -T\n{KILLED}$ ssh gx-5 tail -20 /tmp/worker-2.log\n{OUTPUT}",
            [("dmesg", {"host.name": "gx-4"}), ("text", {"gen_ai.training.rank": 2, "host.name": "gx-5"})],
        ),
        (
            f"$ kubectl get nodes\n{NODES}$ kubectl logs -n ml run-worker-1 --tail 9\n{OUTPUT}",
            [("kubernetes_nodes", {}), ("text", {"k8s.namespace.name": "ml", "k8s.pod.name": "run-worker-1"})],
        ),
        # Other commands stand beside the kernel's lines, so that the part has no format of its own.
        (
            f"{OUTPUT}==== epilog gx-4 2025-03-04 11:23:00 ====\n+ nvidia-smi -L\nGPU 0: B200\n+ dmesg -T\n{KILLED}",
            [("text", {}), ("text", {"host.name": "gx-4"}), ("dmesg", {"host.name": "gx-4"})],
        ),
        (f"{OUTPUT}==== epilog gx-4 2025-03-04 11:23:00 ====\n+ nvidia-smi -L\nGPU 0: B200\n", [("text", {})]),
        # Titles within what one program prints are no borders.
        (f"=== train.log ===\n{OUTPUT}### Events\n{OUTPUT}", [("text", {})]),
        (f"{OUTPUT}# dmesg would tell more\n{OUTPUT}", [("text", {})]),
        (f"{SYSTEM}### rank 3\n{SYSTEM}", [("syslog", {})]),
    ],
)
def test_sections_are_files_of_their_own(
    tmp_path: Path, text: str, streams: list[tuple[str, dict[str, object]]]
) -> None:
    (tmp_path / "issue.txt").write_text(text)
    found = discover([tmp_path]).streams
    assert [(stream.format, stream.resource) for stream in found] == streams


def test_a_section_keeps_its_place_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "issue.txt").write_text(f"$ dmesg\n{SYSTEM}{XID}\n$ tail run.out\n{OUTPUT}ValueError: x\n")
    (incident, *_) = diagnose([tmp_path]).document()["incidents"]
    assert {line["number"]: line["text"] for quote in incident["quotes"] for line in quote["lines"]}[4] == XID.strip()


def test_of_very_many_sections_the_last_one_has_the_rest() -> None:
    text = f"### dmesg\n{XID}### run.out\n{OUTPUT}".encode() * 100
    found = pasted.sections(text, "issue.txt")
    assert len(found) <= pasted.MAX_TABLES
    assert found[-1].end == len(text)


def test_of_very_many_commands_some_are_read() -> None:
    found = list(pasted.tables(f"$ kubectl get nodes\n{NODES}".encode() * 100))
    assert len(found) == pasted.MAX_TABLES


@pytest.mark.parametrize(
    "line",
    [
        "[12.345678901] loss=2.1",  # not the kernel's six digits
        "[12.345] loss=2.1",
        "Mar 04 11:22:33 gpu-4 trainer[12]: loss=2.1",  # not a program of the system
        "2026-03-04 11:22:33 kernel: compiled in 3 s",
    ],
)
def test_what_a_program_writes_itself_is_no_part(tmp_path: Path, line: str) -> None:
    assert _streams(tmp_path, OUTPUT * 9 + line + "\n" + OUTPUT * 9) == [("text", "stdout")]


@pytest.mark.parametrize("line", [XID, KILLED, XID.partition("] ")[2]])
def test_what_a_program_generates_between_its_steps_is_no_part(tmp_path: Path, line: str) -> None:
    assert _streams(tmp_path, f"{OUTPUT}--- generated text ---\n{line}--- end ---\n{OUTPUT}") == [("text", "stdout")]


@pytest.mark.parametrize(
    ("text", "host"),
    [
        (b"zeyer@cn-234 ~ % nvidia-smi\n", "cn-234"),
        (b"[root@gpu07 ~]# dmesg | tail\n", "gpu07"),
        (b"ubuntu@gpu-1.example.org:~/run$ sudo nvidia-smi -q\n", "gpu-1"),
        (b"node24$ nvidia-smi\n", "node24"),
        (b"root@gpu-1:~# dmesg\nroot@gpu-2:~# dmesg\n", None),
        (b"(base) $ nvidia-smi\n", None),
        (b"step2> loss 2.1\n", None),
        (b"mail to ops@site7: please look at $ costs\n", None),
    ],
)
def test_a_prompt_names_the_machine(text: bytes, host: str | None) -> None:
    assert pasted.host(text) == host
