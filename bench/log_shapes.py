# ruff: noqa: E501  a line of a log is as long as it is
"""Logs as training programs and those around them write them, one function for each shape; made up, always the same."""

from __future__ import annotations

import json
import random
from base64 import b64encode
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TypeAlias

#: Of the line's number, its time and some dice.
Shape: TypeAlias = Callable[[int, datetime, random.Random], str]

START = datetime(2026, 11, 15)
LINES_A_SECOND = 50
_OTHERS = (
    "dataset: shard {:05d} of 04096 opened, 1200345 samples",
    "memory: allocated 61.{} GiB, reserved 70.1 GiB, peak 74.0 GiB",
    'urllib3.connectionpool DEBUG "GET /corpus/shard-{:05d}.tar HTTP/1.1" 200 None',
    "throughput 12{}.6 tokens/s, mfu 45.6 %, 412.3 TFLOP/s",
)
_WORDS = (
    "loader",
    "buffer",
    "queue",
    "batch",
    "token",
    "shard",
    "worker",
    "cache",
    "stage",
    "tensor",
    "layer",
    "merge",
)
_HARMLESS = (
    "health: error=0 failed 0 retries 0",
    "store timeout 600 s configured",
    "last error: none; exception handler installed",
    "out of memory guard: off; killed=0",
)
_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
_EIGHTHS = " ▏▎▍▌▋▊▉"


def _stamp(now: datetime) -> str:
    return f"{now:%Y-%m-%d %H:%M:%S},{now.microsecond // 1000:03d}"


def _step(number: int, dice: random.Random, ranks: int = 1) -> str:
    """Nine steps, then something else."""
    if number % 10 == 9:
        return dice.choice(_OTHERS).format(number % 90)
    return f"step {number // ranks} loss {2 + dice.random():.4f} lr 3.0e-4 grad_norm {1 + dice.random():.3f}"


def plain(number: int, now: datetime, dice: random.Random) -> str:
    return f"{_stamp(now)} - INFO - {_step(number, dice)}\n"


def untimed(number: int, now: datetime, dice: random.Random) -> str:
    return f"{_step(number, dice)}\n"


def prefixed(number: int, now: datetime, dice: random.Random) -> str:
    return f"[rank{number % 8}]: {_stamp(now)} INFO {_step(number, dice, 8)}\n"


def labelled(number: int, now: datetime, dice: random.Random) -> str:
    return f"{number % 8}: {_stamp(now)} {_step(number, dice, 8)}\n"


def shared(number: int, now: datetime, dice: random.Random) -> str:
    """Eight ranks, a step apart at most, none of which says who it is."""
    step = max(number // 8 - dice.randrange(2), 0)
    return f"{_stamp(now)} INFO step {step} loss {2 + dice.random():.4f} grad_norm {1 + dice.random():.3f}\n"


def dictionaries(number: int, now: datetime, dice: random.Random) -> str:
    values = f"'loss': {2 + dice.random():.4f}, 'grad_norm': {1 + dice.random():.6f}, 'learning_rate': {3e-4:.3e}"
    return f"{{{values}, 'epoch': {number / 5000:.2f}}}\n"


def bars(number: int, now: datetime, dice: random.Random) -> str:
    """Redrawn in place, and never a newline."""
    total = 25_000
    step = number % total
    full, part = divmod(step * 80 // total, 8)
    bar = f"{'█' * full}{_EIGHTHS[part]}{' ' * (9 - full)}"
    gone, left = (f"{seconds // 60:02d}:{seconds % 60:02d}" for seconds in (step // 9, (total - step) // 9))
    return f"\r{step * 100 // total:3d}%|{bar}| {step}/{total} [{gone}<{left},  9.0it/s, loss={2 + dice.random():.3f}]"


def megatron(number: int, now: datetime, dice: random.Random) -> str:
    values = (
        f"iteration {number:8d}/ 1000000",
        f"consumed samples: {number * 256:12d}",
        f"elapsed time per iteration (ms): {400 + dice.random() * 20:.1f}",
        f"learning rate: {3e-4:.6E}",
        f"lm loss: {2 + dice.random():.6E}",
        f"grad norm: {1 + dice.random():.3f}",
        "number of skipped iterations:   0",
        "number of nan iterations:   0",
    )
    return f" [{now:%Y-%m-%d %H:%M:%S}] {' | '.join(values)} |\n"


def docker(number: int, now: datetime, dice: random.Random) -> str:
    time = f"{now:%Y-%m-%dT%H:%M:%S}.{now.microsecond * 1000 + number * 7919 % 1000:09d}".rstrip("0") + "Z"
    entry = {"log": _step(number, dice) + "\n", "stream": "stdout", "time": time}
    return json.dumps(entry, separators=(",", ":")) + "\n"


def nccl(number: int, now: datetime, dice: random.Random) -> str:
    before = f"node-1:{12_000 + number % 8}:{13_000 + number % 8} [{number % 8}] NCCL INFO "
    if number % 2:
        return f"{before}Channel {number % 32:02d}/0 : {number % 8}[{number % 8}] -> 1[1] via P2P/CUMEM/read\n"
    return (
        f"{before}AllReduce: opCount {number:x} sendbuff 0x7f{number * 64:010x} count 1048576 datatype 9 op 0 root 0\n"
    )


def chatter(number: int, now: datetime, dice: random.Random) -> str:
    """Nothing about training, with words that failures have, too."""
    if number % 20 == 7:
        return f"{_stamp(now)} {dice.choice(_HARMLESS)}\n"
    return f"{_stamp(now)} INFO {' '.join(dice.choices(_WORDS, k=dice.randrange(4, 14)))} {dice.randrange(10**6)}\n"


def long_json(number: int, now: datetime, dice: random.Random) -> str:
    metrics = {f"{dice.choice(_WORDS)}_{metric}": round(dice.random(), 6) for metric in range(190)}
    line = {"ts": f"{now:%Y-%m-%dT%H:%M:%S.%f}Z", "level": "info", "step": number, "loss": round(2 + dice.random(), 4)}
    return json.dumps({**line, "metrics": metrics}) + "\n"


def coloured(number: int, now: datetime, dice: random.Random) -> str:
    values = f"\x1b[32mloss: {2 + dice.random():7.4f}  \x1b[33mmemory: 61.20GiB(77.30%)  \x1b[34mtps: 10,634"
    return (
        f"[rank{number % 8}]:[titan] {_stamp(now)} - root - INFO - \x1b[31mstep: {number // 8:2d}  {values}\x1b[39m\n"
    )


def json_tracebacks(number: int, now: datetime, dice: random.Random) -> str:
    """Every line an error, with its traceback in a field."""
    module = _WORDS[number % 6]
    frames = "".join(
        f'  File "/app/{module}.py", line {at}, in {word}\n    {word}(batch)\n' for at, word in enumerate(_WORDS[:5])
    )
    error = f"ValueError: row {dice.randrange(10**6)}: expected 512 tokens, got {number % 500}"
    entry = {"ts": f"{now:%Y-%m-%dT%H:%M:%S.%f}Z", "level": "error", "msg": "skipped a batch", "sample": number}
    return json.dumps({**entry, "exc_info": f"Traceback (most recent call last):\n{frames}{error}"}) + "\n"


def loguru(number: int, now: datetime, dice: random.Random) -> str:
    return f"{_stamp(now).replace(',', '.')} | INFO     | trainer.loop:run:{dice.randrange(80, 99)} - {_step(number, dice)}\n"


def deepspeed(number: int, now: datetime, dice: random.Random) -> str:
    rate = 20 + dice.random()
    return f"[{_stamp(now)}] [INFO] [logging.py:96:log_dist] [Rank {number % 8}] step={number // 8}, skipped=0, lr=[{rate * 1e-6}], mom=[(0.9, 0.95)]\n"


def ray(number: int, now: datetime, dice: random.Random) -> str:
    return f"(RayTrainWorker pid={4000 + number % 8}, ip=10.0.0.7) {_step(number, dice, 8)}\n"


def glog(number: int, now: datetime, dice: random.Random) -> str:
    return f"I{now:%m%d %H:%M:%S}.{now.microsecond:06d} 140001 train.py:{dice.randrange(200, 203)}] completed {_step(number, dice)}\n"


def keras(number: int, now: datetime, dice: random.Random) -> str:
    done = number % 1000
    bar = "=" * (done // 34) + ">" + "." * (29 - done // 34)
    return f"{done:4d}/1000 [{bar}] - ETA: {(1000 - done) // 9}s - loss: {2 + dice.random():.4f} - accuracy: {dice.random():.4f}\r"


def crio_bars(number: int, now: datetime, dice: random.Random) -> str:
    """Bars as CRI-O keeps them: it stores what it reads at once, and a redraw is no whole line."""
    return f"{now:%Y-%m-%dT%H:%M:%S.%f}000Z stderr P {bars(number, now, dice)}\n"


def crio_keras(number: int, now: datetime, dice: random.Random) -> str:
    """The same of Keras, whose bars end with the carriage return."""
    return f"{now:%Y-%m-%dT%H:%M:%S.%f}000Z stdout P {keras(number, now, dice)}\n"


def rulers(number: int, now: datetime, dice: random.Random) -> str:
    return "=" * dice.randrange(30, 120) + "\n" if number % 2 else f"{_stamp(now)} INFO {dice.choice(_WORDS)}\n"


def tables(number: int, now: datetime, dice: random.Random) -> str:
    if number % 5 == 0:
        return "├" + "─" * 26 + "┼" + "─" * 10 + "┼" + "─" * 10 + "┤\n"
    return f"│ {dice.choice(_WORDS):<24} │ {dice.random():8.4f} │ {dice.randrange(9999):>8} │\n"


def identifiers(number: int, now: datetime, dice: random.Random) -> str:
    parts = (f"{dice.getrandbits(4 * digits):0{digits}x}" for digits in (8, 4, 4, 4, 12))
    return f"{'-'.join(parts)} step {number} loss {2 + dice.random():.4f} span={dice.getrandbits(32):08x}"


def opaque(number: int, now: datetime, dice: random.Random) -> str:
    return f"{_stamp(now)} INFO {b64encode(dice.randbytes(18)).decode()} {_step(number, dice)}\n"


def urls(number: int, now: datetime, dice: random.Random) -> str:
    where = f"https://s3.example/{b64encode(dice.randbytes(12)).decode()}?sig={b64encode(dice.randbytes(27)).decode()}"
    return f"{_stamp(now)} PUT {where} step={number} loss={2 + dice.random():.4f}\n"


def phases(number: int, now: datetime, dice: random.Random) -> str:
    """Short identifiers, and words before and behind each step."""
    name = "".join(dice.choices(_LETTERS, k=dice.randrange(2, 5)))
    return (
        f"{dice.choice(_WORDS)} {name} step {number} {dice.choice(_WORDS)}/{name[::-1]} loss {2 + dice.random():.4f}\n"
    )


def _metrics(names: list[str], number: int, dice: random.Random) -> str:
    values = {name: round(dice.random(), 5) for name in names} | {"loss": round(2 + dice.random(), 4)}
    entries = list(({"step": number} | values).items())
    dice.shuffle(entries)
    return str(dict(entries))


def metrics_in_any_order(number: int, now: datetime, dice: random.Random) -> str:
    return f"{_stamp(now)} {_metrics(['grad_norm', 'learning_rate', 'perf/mfu', 'eval/accuracy'], number, dice)}\n"


def metrics_of_a_choice(number: int, now: datetime, dice: random.Random) -> str:
    chosen = dice.sample(_WORDS, k=dice.randrange(2, 9))
    metrics = " ".join(f"{word}/{dice.choice(_WORDS)}={dice.random():.5f}" for word in chosen)
    return f"{_stamp(now)} step={number} {metrics} loss={2 + dice.random():.4f}\n"


def json_in_any_order(number: int, now: datetime, dice: random.Random) -> str:
    entries: list[tuple[str, object]] = [("ts", f"{now:%Y-%m-%dT%H:%M:%S.%f}Z"), ("step", number), ("loss", 2.5)]
    entries += [(word, round(dice.random(), 4)) for word in dice.sample(_WORDS, k=dice.randrange(2, 6))]
    dice.shuffle(entries)
    return json.dumps(dict(entries)) + "\n"


SHAPES: tuple[Shape, ...] = (
    identifiers,
    plain,
    untimed,
    prefixed,
    labelled,
    shared,
    dictionaries,
    bars,
    megatron,
    docker,
    nccl,
    chatter,
    long_json,
    coloured,
    json_tracebacks,
    loguru,
    deepspeed,
    ray,
    glog,
    keras,
    crio_bars,
    crio_keras,
    rulers,
    tables,
    opaque,
    urls,
    phases,
)
#: Each line has an outline of its own here, and is evaluated: there is no bar for these.
SLOW: tuple[Shape, ...] = (metrics_in_any_order, metrics_of_a_choice, json_in_any_order)


def log(shape: Shape, size: int) -> bytes:
    """About so many bytes of a shape."""
    dice = random.Random(7)
    lines: list[str] = []
    written = number = 0
    while written < size:
        line = shape(number, START + timedelta(seconds=number / LINES_A_SECOND), dice)
        lines.append(line)
        written += len(line)
        number += 1
    return "".join(lines).encode()
