"""Failures as other launchers and meshes show them. See record.py."""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from train import RANK, SCENARIO, SCRATCH, WORLD, finish, say, start, step


def mesh_of_two_dimensions() -> None:
    """Two by four ranks: one of them is held up on the host between its row and its column."""
    from torch.distributed.device_mesh import init_device_mesh

    start()
    mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("data", "tensor"))
    rows, columns = mesh.get_group("data"), mesh.get_group("tensor")
    for n in range(6):
        dist.all_gather_into_tensor(torch.empty(4096, device="cuda"), torch.ones(1024, device="cuda"), group=columns)
        step(n, group=rows)
    if RANK == 6:
        say("rank 6 | waiting for a batch from the queue")
        time.sleep(600)
    dist.all_gather_into_tensor(torch.empty(4096, device="cuda"), torch.ones(1024, device="cuda"), group=columns)
    step(6, group=rows)
    finish()


def only_one_evaluates() -> None:
    """Rank 0 evaluates alone, and its metric is reduced over everybody."""
    start()
    for n in range(6):
        step(n)
    if RANK == 0:
        say("rank 0 | evaluating")
        total = torch.zeros(2, device="cuda")
        dist.all_reduce(total)
        torch.cuda.synchronize()
        say(f"rank 0 | eval_loss {total[0].item():.4f}")
    else:
        dist.broadcast(torch.ones(4096, device="cuda"), 0)
        torch.cuda.synchronize()
    step(6)
    finish()


def object_fails() -> None:
    start()
    for n in range(3):
        step(n)
    box = [(lambda: 0) if RANK == 0 else None]
    dist.broadcast_object_list(box, 0)
    finish()


def leaves_early() -> None:
    """One rank has fewer batches, says that it is done and goes."""
    start()
    for n in range(6 if RANK == 3 else 40):
        step(n)
    if RANK == 3:
        say("rank 3 | epoch finished, 6 batches")
        os._exit(0)
    finish()


def slow_load() -> None:
    """Rank 0 reads the checkpoint from storage that takes longer than the others wait."""
    start()
    step(0)
    if RANK == 0:
        say("rank 0 | loading checkpoint from /mnt/shared/run7/step_9000")
        time.sleep(600)
    dist.broadcast(torch.ones(1 << 20, device="cuda"), 0)
    torch.cuda.synchronize()
    finish()


def raises_in_one() -> None:
    start()
    for n in range(6):
        step(n)
    if RANK == 2:
        raise IndexError("index 50304 is out of bounds for dimension 0 with size 50257")
    step(6)
    finish()


def goes_well() -> None:
    start()
    for n in range(25):
        step(n)
    finish()


def compiles_long() -> None:
    """A long silence before the third step, as compilers make it."""
    start()
    for n in range(3):
        step(n)
    say(f"rank {RANK} | compiling the model, this can take a while")
    time.sleep(14)
    for n in range(3, 20):
        step(n)
    finish()


def wrong_settings() -> None:
    import json

    settings = json.loads('{"model": {"layers": 12}}')
    say(f"rank {RANK} | layers {settings['model']['layers']}")
    say(f"rank {RANK} | hidden {settings['model']['hidden_size']}")
    start()


def says_goodbye() -> None:
    start()
    for n in range(4):
        step(n)
    if RANK == 1:
        sys.exit("ERROR: tokenizer vocabulary (32000) does not match the checkpoint's (32064)")
    step(4)
    finish()


def taken_port() -> None:
    import socket

    if RANK == 0:
        other = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        other.bind(("::", int(os.environ["MASTER_PORT"])))
        other.listen()
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
    start()


def memory_of_another() -> None:
    """Somebody else's process holds the memory."""
    start()
    for n in range(3):
        step(n)
    if RANK == 0:
        held = torch.empty(100 << 30, dtype=torch.uint8, device="cuda")
        say(f"rank 0 | cache of {held.numel() >> 30} GiB")
    dist.barrier()
    if RANK == 1:
        torch.empty(60 << 30, dtype=torch.uint8, device="cuda")
    step(3)
    finish()


def ragged_exchange() -> None:
    """What one rank sends another expects in another size."""
    start()
    for n in range(4):
        step(n)
    send = [1024] * WORLD
    take = [1024] * WORLD
    if RANK == 1:
        send[2] = 1 << 21
    out = torch.empty(sum(take), device="cuda")
    dist.all_to_all_single(out, torch.ones(sum(send), device="cuda"), take, send)
    torch.cuda.synchronize()
    step(4)
    finish()


def hf_ranks_fail() -> None:
    """Two ranks of a Trainer that takes the second for one with a GPU of its own: it fails, the first loses it."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    class Text(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 200

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            ids = torch.randint(0, 500, (64,))
            return {"input_ids": ids, "labels": ids}

    torch.cuda.set_device(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=500, n_positions=64, n_embd=64, n_layer=2, n_head=2))
    arguments = TrainingArguments(
        output_dir=f"{SCRATCH}/hf", per_device_train_batch_size=4, num_train_epochs=1, logging_steps=5, report_to=[],
        save_strategy="no", ddp_backend="gloo",
    )  # fmt: skip
    os.environ["LOCAL_RANK"] = "0"
    Trainer(model=model, args=arguments, train_dataset=Text()).train()


def spawned(rank: int) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "NCCL_HOSTID": f"h{rank}"}
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", rank=rank, world_size=4)
    for n in range(6):
        time.sleep(0.05)
        dist.all_reduce(torch.ones(1024, device="cuda"))
        torch.cuda.synchronize()
        print(f"[rank {rank}] step {n} loss {2 / (n + 1):.4f}", flush=True)
    if rank == 2 and SCENARIO == "spawned_raises":
        raise RuntimeError(
            "The size of tensor a (768) must match the size of tensor b (1024) at non-singleton dimension 1"
        )
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1024, device="cuda"))
    torch.cuda.synchronize()


def main() -> None:
    if SCENARIO.startswith("spawned_"):
        torch.multiprocessing.spawn(spawned, nprocs=4)
    elif SCENARIO in ("teed_exception", "restarts_in_vain", "labelled_exception"):
        raises_in_one()
    elif SCENARIO in ("teed_well", "labelled_well"):
        goes_well()
    else:
        globals()[SCENARIO]()


if __name__ == "__main__":
    main()
