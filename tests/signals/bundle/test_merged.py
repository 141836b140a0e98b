"""Texts in which lines of the kernel stand between those of a program, and prompts of a terminal around them."""

from __future__ import annotations

import pytest

from tracecore.signals.bundle import pasted
from tracecore.signals.bundle.recognition import kind_of_line, recognise
from tracecore.signals.kernel import lines
from tracecore.signals.stream import Clock, Stream

KERNEL = "2025-01-19T02:10:41.330Z kernel: nvidia 0000:66:00.0: PCIe Bus Error: severity=Corrected\n"
NAMED = "2025-01-19T02:10:41.330Z n7 kernel: NVRM: Xid (PCI:0000:66:00): 79, GPU has fallen off the bus.\n"


def step(minute: int, number: int) -> str:
    return f"2025-01-19T02:{minute:02}:05.000Z trainer: step {number} loss 2.1\n"


@pytest.mark.parametrize("kernel", [KERNEL, NAMED], ids=["hostless", "with its host"])
def test_logs_that_were_merged_are_read_as_both(kernel: str) -> None:
    text = (step(9, 1) + kernel + step(12, 2)).encode()
    ((found, part),) = pasted.parts(text)
    assert found.format == "syslog"
    assert part.strip() == kernel.encode().strip()


@pytest.mark.parametrize(
    "text",
    [
        step(12, 1) + KERNEL + step(13, 2),
        step(9, 1) + KERNEL.replace("2025-01-19T02:10:41.330Z", "Jan 19 02:10:41") + step(12, 2),
        step(9, 1) + KERNEL.replace("2025", "2019") + step(12, 2),
    ],
    ids=["later lines above it", "a time without a year", "of another year"],
)
def test_what_a_program_quotes_of_a_kernel_is_not_read(text: str) -> None:
    assert list(pasted.parts(text.encode())) == []


def test_a_line_of_the_kernel_without_a_host() -> None:
    assert kind_of_line(KERNEL.encode()) == "syslog"
    assert recognise((KERNEL * 5).encode(), b"", "node.log", True).format == "syslog"
    stream = Stream(path="node.log", format="syslog", layer="kernel", open=lambda: None)  # type: ignore[arg-type,return-value]
    line = lines.dialect(stream, Clock())(KERNEL.strip().encode())
    assert (line.host, line.program) == ("", "kernel")
    assert line.text == b"nvidia 0000:66:00.0: PCIe Bus Error: severity=Corrected"


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("kim@bluebird:~/seg$ python train.py\n", "bluebird"),
        ("[svc@tor-h200-17 run]$ dmesg -T\n", "tor-h200-17"),
        ("rig-b12:~$ nvidia-smi\n", "rig-b12"),
        ("ada@login:~$ tail out\nada@gpu-7:~$ nvidia-smi\n", "gpu-7"),
        ("ada@login-02:~$ tail out\n", None),
        ("ada@laptop:~$ grep Error out\n", None),
        ("kim@one:~$ dmesg\nkim@two:~$ dmesg\n", None),
    ],
)
def test_prompts_name_the_machine_unless_people_only_log_in_there(text: str, host: str | None) -> None:
    assert pasted.host(text.encode()) == host
