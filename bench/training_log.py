"""A container's log as training jobs write it: nine progress lines in ten, made up, always the same."""

from __future__ import annotations

import random
from datetime import UTC, datetime

#: What else such logs say, again and again.
OTHERS = (
    "dataset: shard 00123 of 04096 opened, 1200345 samples",
    'urllib3.connectionpool DEBUG "GET /corpus/shard-00123.tar HTTP/1.1" 200 None',
    "host01:123:456 [0] NCCL INFO comm 0x55d1 rank 0 nranks 64 cudaDev 0 busId 3b000 - Init COMPLETE",
    "memory: allocated 61.2 GiB, reserved 70.1 GiB, peak 74.0 GiB",
    "INFO gc took 12 ms for 4321 objects",
    "throughput 12345.6 tokens/s, mfu 45.6 %, 412.3 TFLOP/s",
)
START = 1_763_170_624


def training_log(size: int, *, ranks: int = 1, per_second: int = 1000, seed: int = 7) -> bytes:
    """About `size` bytes in the CRI format: steps of some ranks in turn, now and then a checkpoint, a failure last.

    Args:
        size: in bytes.
        ranks: how many processes write to this one log.
        per_second: lines a second, all ranks together.
        seed: of the numbers in the lines.
    """
    numbers = random.Random(seed)
    losses = [f"{numbers.uniform(1, 3):.4f} | grad_norm {numbers.uniform(0.5, 1.5):.3f}" for _ in range(997)]
    times = [f"{numbers.uniform(200, 400):.1f} ms" for _ in range(991)]
    lines: list[str] = []
    written = number = 0
    step = 1000
    second, stamp = -1, ""
    while written < size:
        now, part = divmod(number, per_second)
        if now != second:
            second, stamp = now, datetime.fromtimestamp(START + now, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        nanos = part * (1_000_000_000 // per_second)
        rank = number % ranks
        if number % 10 == 9:
            text = f"stderr F [rank{rank}]: {OTHERS[number // 10 % len(OTHERS)]}"
        elif number % 50_000 == 1:
            text = f"stdout F [rank{rank}]: Saving checkpoint at step {step} to /ckpt/run1/step_{step}"
        else:
            step += rank == 0
            loss, took = losses[number % 997], times[number % 991]
            text = f"stdout F [rank{rank}]: step {step}/1000000 | loss {loss} | lr 3.00e-04 | {took} | 12345 tok/s"
        line = f"{stamp}.{nanos:09d}Z {text}\n"
        lines.append(line)
        written += len(line)
        number += 1
    lines.append(f"{stamp}.999999999Z stderr F RuntimeError: CUDA error: an illegal memory access was encountered\n")
    return "".join(lines).encode()
