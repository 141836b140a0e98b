"""Kernel logs in every shape they are saved in."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracecore.signals.bundle.discovery import discover
from tracecore.signals.bundle.recognition import recognise
from tracecore.signals.kernel import journal, lines, reader
from tracecore.signals.logs.selector import SelectAll, SelectLiterals, Selector
from tracecore.signals.record import LogSignal
from tracecore.signals.stamps import SECOND
from tracecore.signals.stream import Clock, Counters, Stream

T = 1_794_706_624 * SECOND  # 2026-11-15T01:37:04Z
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."
Make = Callable[..., Stream]

OOM = """pt_data_worker invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0
CPU: 3 PID: 11 Comm: pt_data_worker Not tainted 6.8.0
Call Trace:
 <TASK>
 dump_stack_lvl+0x76/0xa0
 </TASK>
memory: usage 8388608kB, limit 8388608kB, failcnt 11
Memory cgroup stats for /training:
anon 123
Tasks state (memory values in pages):
[  pid  ]   uid  tgid total_vm      rss name
[   1149]     0  1149  2478629  1569692 pt_data_worker
oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task=pt_data_worker,pid=1149,uid=0
Memory cgroup out of memory: Killed process 1149 (pt_data_worker) total-vm:9914516kB""".splitlines()


def read(stream: Stream, clock: Clock | None = None) -> list[LogSignal]:
    return list(reader.read(stream, SelectAll(), clock or Clock(T, True)))


@pytest.mark.parametrize("month", ["lis", "nov."])
def test_a_month_in_another_language_is_a_time_nobody_can_read(make: Make, month: str) -> None:
    line = f"{month} 15 01:37:04 node-7 kernel: {XID}"
    assert recognise(line.encode(), b"", "file", True).format == "syslog"
    (record,) = read(make(line, "syslog", layer="kernel"))
    assert (record["log"]["body"], record["resource"]["attributes"]["host.name"]) == (XID, "node-7")
    assert record["log"]["attributes"]["tracecore.time.inferred"] is True


@pytest.mark.parametrize("prefix", ["", "Nov 15 01:37:04 node-7 kernel: "])
def test_the_drivers_sentence_about_a_lost_gpu_is_one_record(make: Make, prefix: str) -> None:
    indent = "" if prefix else "               "
    said = ["NVRM: The NVIDIA GPU 0000:b3:00.0", "NVRM: (PCI ID: 10de:2330) installed in this system has",
            "NVRM: fallen off the bus and is not responding to commands."]  # fmt: skip
    text = "\n".join([f"{prefix}{said[0]}", *(f"{prefix}{indent}{line}" for line in said[1:]), f"{prefix}other"])
    first, second = read(make(text + "\n", "syslog" if prefix else "dmesg", layer="kernel"))
    assert [line.strip() for line in first["log"]["body"].splitlines()] == said
    assert second["log"]["body"] == "other"


def test_another_sentence_of_the_driver_about_a_gpu_is_several(make: Make) -> None:
    said = ["NVRM: The NVIDIA GPU 0000:b3:00.0 (PCI ID: 10de:1db4)", "NVRM: installed in this system is not supported",
            "NVRM: by the NVIDIA 580.65.06 driver release."]  # fmt: skip
    found = read(make("\n".join(said) + "\n", "dmesg", layer="kernel"))
    assert [record["log"]["body"] for record in found] == said


@pytest.mark.parametrize(
    ("line", "format", "host"),
    [
        (f"[Sun Nov 15 01:37:04 2026] {XID}", "dmesg", None),
        (f"2026-11-15T01:37:04,000000+00:00 {XID}", "dmesg", None),
        (f"kern  :warn  : [Sun Nov 15 01:37:04 2026] {XID}", "dmesg", None),
        (f"Nov 15 01:37:04 node-7 kernel: {XID}", "syslog", "node-7"),
        (f"Nov 15 01:37:04 node-7 kernel: [  166.337322] {XID}", "syslog", "node-7"),
        (f"2026-11-15T01:37:04+0000 node-7 kernel: {XID}", "syslog", "node-7"),
        (f"2026-11-15T01:37:04.000000+00:00 node-7 kernel: {XID}", "syslog", "node-7"),
        (f"<4>Nov 15 01:37:04 node-7 kernel: {XID}", "syslog", "node-7"),
        (f"10.5.0.2: kern: warning: [2026-11-15T01:37:04.0Z]: {XID}", "dmesg", "10.5.0.2"),
    ],
)
def test_lines_with_a_wall_clock(make: Make, line: str, format: str, host: str | None) -> None:
    assert recognise(line.encode(), b"", "file", True).format == format
    (record,) = read(make(line, format, layer="kernel"))
    assert record["log"]["body"] == XID
    assert record["log"]["time_unix_nano"] == T
    assert "tracecore.time.inferred" not in record["log"]["attributes"]
    assert record["resource"]["attributes"].get("host.name") == host
    assert record["resource"]["attributes"]["tracecore.layer"] == "kernel"


@pytest.mark.parametrize(
    "line",
    [
        f"[  100.500000] {XID}",
        f"<6>[  100.500000] {XID}",
        f"[  100.500000][ T1234] {XID}",
        f"kern  :err   : [  100.500000] {XID}",
        f"4,1234,100500000,-;{XID}",
        f"4,1234,100500000,-,caller=T12;{XID}",
    ],
)
def test_lines_with_a_time_since_boot(make: Make, line: str) -> None:
    assert recognise(line.encode(), b"", "file", True).format == "dmesg"
    stream = make(line, "dmesg", layer="kernel", last_uptime=lines.last_uptime(line.encode()))
    (record,) = read(stream)
    assert record["log"]["body"] == XID
    assert record["log"]["time_unix_nano"] == T
    assert record["log"]["attributes"]["tracecore.time.inferred"] is True
    stream.boot_time = T - 3600 * SECOND
    (record,) = read(stream)
    assert record["log"]["time_unix_nano"] == T - 3600 * SECOND + 100 * SECOND + 500_000_000
    assert "tracecore.time.inferred" not in record["log"]["attributes"]


def test_the_log_says_when_the_machine_booted() -> None:
    clock = b"[    1.250000] rtc_cmos 00:01: setting system clock to 2026-11-15T01:37:04 UTC (1794706624)\n"
    assert lines.boot_time(clock) == T - 1_250_000_000
    audit = clock + b"[   10.000000] audit: type=1400 audit(1794706700.500:3): apparmor\n"
    assert lines.boot_time(audit) == 1_794_706_690_500_000_000
    assert lines.boot_time(b"[    1.250000] nothing about clocks\n") is None


def test_programs_in_a_syslog_keep_their_layer(make: Make) -> None:
    text = (
        "Nov 15 01:37:04 n1 kernel: a\nNov 15 01:37:04 n1 slurmd[12]: error: b\nNov 15 01:37:04 n1 kubelet[9]: c\n"
        "Nov 15 01:37:04 n1 sshd[3]: d\n"
    )
    found = read(make(text, "syslog", layer="kernel"))
    layers = [(r["log"]["body"], r["resource"]["attributes"]["tracecore.layer"]) for r in found]
    assert sorted(layers) == [("a", "kernel"), ("c", "kubernetes"), ("d", "kernel"), ("error: b", "scheduler")]


def test_a_monotonic_journal_names_its_host(make: Make) -> None:
    (record,) = read(make(f"[  100.500000] node-7 kernel: {XID}\n", "dmesg", layer="kernel"))
    assert record["log"]["body"] == XID
    assert record["resource"]["attributes"]["host.name"] == "node-7"


PARTS = [
    f"[    1.000000] {XID}\n",
    *(f"[    2.000000] {line}\n" for line in OOM),
    f"Nov 15 01:37:04 n1 kernel: {XID}\n",
    "x",
]


@given(
    st.lists(st.sampled_from(PARTS), max_size=25).map("".join),
    st.integers(1, 300),
    st.sampled_from([SelectAll(), SelectLiterals([b"Xid"])]),
)
def test_block_borders_do_not_matter(make: Make, text: str, size: int, selector: Selector) -> None:
    stream = make(text, "syslog", layer="kernel")
    clock = Clock(T, True)
    assert list(reader.read(stream, selector, clock, block_size=size)) == list(reader.read(stream, selector, clock))


@pytest.mark.parametrize("prefix", ["[  166.337322] ", "Nov 15 01:37:04 n1 kernel: "])
def test_an_oom_report_is_one_record_whatever_stands_between(make: Make, prefix: str) -> None:
    text = [prefix + line for line in OOM]
    text.insert(5, prefix + XID)
    data = "\n".join(text) + "\n"
    stream = make(data, recognise(data.encode(), b"", "f", True).format, layer="kernel")
    picked = list(reader.read(stream, SelectLiterals([b"Xid"]), Clock(T, True)))
    bodies = sorted(str(r["log"]["body"]) for r in picked)
    assert bodies == sorted(["\n".join(OOM), XID])
    report = next(r for r in picked if "oom-killer" in str(r["log"]["body"]))
    assert report["source"].length == len(data) - 1


def test_a_recorded_oom_report(incidents: object) -> None:
    bundle = discover([f"{incidents}/cgroup_oom_loader"])
    (stream,) = bundle.of("dmesg")
    (record,) = reader.read(stream, SelectLiterals([]), bundle.clock)
    assert "Killed process 1149 (pt_data_worker)" in str(record["log"]["body"])


def entries() -> list[dict[str, object]]:
    base = {"_HOSTNAME": "n1", "_TRANSPORT": "kernel", "SYSLOG_IDENTIFIER": "kernel"}
    rows = [{**base, "MESSAGE": text} for text in OOM]
    rows.append({**base, "MESSAGE": [78, 86, 82, 77, 255]})
    rows.append({**base, "_TRANSPORT": "syslog", "SYSLOG_IDENTIFIER": "slurmstepd", "MESSAGE": "error: killed"})
    return [{**row, "__REALTIME_TIMESTAMP": str(T // 1000 + i)} for i, row in enumerate(rows)]


def check_journal(found: list[LogSignal]) -> None:
    assert [str(r["log"]["body"])[:20] for r in found] == ["pt_data_worker invok", "NVRM�", "error: killed"]
    assert str(found[0]["log"]["body"]).endswith("total-vm:9914516kB")
    assert found[0]["log"]["time_unix_nano"] == T
    assert [r["resource"]["attributes"]["tracecore.layer"] for r in found] == ["kernel", "kernel", "scheduler"]


def test_journal_json(make: Make) -> None:
    data = "\n".join(json.dumps(row) for row in entries()) + '\n{"MESSAGE": cut'
    assert recognise(data.encode(), b"", "journal.json", True).format == "journal_json"
    counters = Counters()
    stream = make(data, "journal_json", layer="kernel")
    check_journal(list(journal.read_json(stream, SelectAll(), Clock(T, True), counters)))
    assert counters.lines_unparsed == 1
    picked = list(journal.read_json(stream, SelectLiterals([b"error: killed"]), Clock(T, True)))
    assert picked[-1]["log"]["body"] == "error: killed"
    assert picked[-1]["source"].line == len(OOM) + 2


def test_journal_json_gives_only_what_is_picked(make: Make) -> None:
    rows = [json.dumps({"MESSAGE": f"line {i}", "__REALTIME_TIMESTAMP": "1"}) for i in range(50)]
    found = list(
        journal.read_json(make("\n".join(rows), "journal_json"), lambda block: [block.find(b"line 33")], Clock())
    )
    assert [(r["log"]["body"], r["source"].line) for r in found] == [("line 33", 34)]


@pytest.mark.parametrize("size", [1, 7, 1 << 16])
def test_journal_export(make: Make, size: int) -> None:
    data = b""
    for row in entries():
        for key, value in row.items():
            raw = bytes(value) if isinstance(value, list) else str(value).encode()
            if isinstance(value, list):
                data += key.encode() + b"\n" + struct.pack("<Q", len(raw)) + raw + b"\n"
            else:
                data += key.encode() + b"=" + raw + b"\n"
        data += b"\n"
    stream = make(data, "journal_export", layer="kernel")
    check_journal(list(journal.read_export(stream, SelectAll(), Clock(T, True), block_size=size)))


def test_an_export_cut_inside_of_a_field_says_so(make: Make) -> None:
    stream = make(b"__CURSOR=x\nMESSAGE\n" + struct.pack("<Q", 100) + b"abc", "journal_export")
    with pytest.raises(ValueError, match="ends inside"):
        list(journal.read_export(stream, SelectAll(), Clock()))
