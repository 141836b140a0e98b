"""A trainer on a CPU whose loader worker is killed, which goes on with the next batch. See record_loader.py.

The trainer catches the loader's error, as programs do that skip bad batches, and asks for the next batch. The worker
died while it wrote one: it held the lock of the queue, and its message has no end. DataLoader waits for the rest for
ever.
"""

from __future__ import annotations

import logging
import os
import threading
import time

import torch
from torch.utils.data import DataLoader, Dataset

RANK = int(os.environ.get("RANK", "0"))
STEPS = int(os.environ.get("STEPS", "400"))

logging.basicConfig(format="[%(asctime)s] %(levelname)s %(message)s", datefmt="%Y-%m-%d %H:%M:%S", level=logging.INFO)
log = logging.getLogger("train")


class Images(Dataset[bytes]):
    """Images as files have them: compressed bytes, which go through the loader's queue as they are."""

    def __len__(self) -> int:
        return STEPS * 8

    def __getitem__(self, index: int) -> bytes:
        return os.urandom(4 << 20)


def heartbeat() -> None:
    while True:
        time.sleep(20)
        log.info("rank %d | heartbeat | load %.2f", RANK, os.getloadavg()[0])


def main() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = iter(DataLoader(Images(), batch_size=8, num_workers=2, collate_fn=b"".join))
    threading.Thread(target=heartbeat, daemon=True).start()
    workers = [worker.pid for worker in batches._workers]
    log.info("rank %d | %d loader workers: %s", RANK, len(workers), " ".join(map(str, workers)))
    for step in range(STEPS):
        began = time.time()
        try:
            images = next(batches)
        except RuntimeError:
            log.exception("rank %d | batch %d could not be loaded, going on with the next", RANK, step)
            continue
        waited = time.time() - began
        batch = torch.frombuffer(bytearray(images[:512]), dtype=torch.uint8).float().reshape(8, 64) / 255
        time.sleep(0.1)
        loss = (model(batch) - batch).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        took = time.time() - began
        log.info(
            "rank %d | step %d | loss %.4f | data_time %.3f | iter_time %.3f", RANK, step, loss.item(), waited, took
        )
    log.info("rank %d | training complete", RANK)


if __name__ == "__main__":
    main()
