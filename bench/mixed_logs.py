# ruff: noqa: E501  a line of a log is as long as it is
"""Logs as varied as those of real jobs: in each mixture a few frameworks and loggers write into the same stream.

    python -m bench.mixed_logs FOLDER --mixture ray --layout docker --megabytes 100 --seed 3

The same arguments always give the same bytes. Layouts are how the lines are kept: `cri` and `docker` as container runtimes do, one
file for each pod; `plain` as a program's output was redirected; `ranks` as torchrun keeps them, two files for each rank.
"""

from __future__ import annotations

import argparse
import json
import random
from base64 import b64encode
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, TypeAlias

START = 1_794_700_000
LINES_A_SECOND = 50
#: Lines that are made; a longer log says them again, later.
DISTINCT = 20_000
#: One line in so many is cut in two by the container runtime.
CUT = 1009

WORDS = (
    "attention", "embedding", "optimizer", "shard", "prefetch", "allreduce", "gradient", "tokenizer", "checkpoint", "scheduler", "cache",
    "layer", "bucket", "stream", "kernel", "graph", "compile", "worker", "loader", "batch", "step", "epoch", "rank", "data", "error", "loss",
)  # fmt: skip

HAN = ("模型", "数据", "训练", "损失", "梯度", "学习率", "加载", "节点", "通信", "缓存", "检查点", "优化器", "警告", "错误", "完成", "等待")  # fmt: skip
KANA = ("モデル", "データ", "学習", "損失", "勾配", "読み込み", "ノード", "通信", "キャッシュ", "保存", "警告", "エラー", "完了", "待機", "を", "の")  # fmt: skip

#: Words of people who write sentences into logs; some of them are words of progress.
ENGLISH = (
    "the", "a", "of", "to", "in", "for", "with", "after", "before", "while", "from", "into", "over", "under",
    "between", "without", "because", "although", "until", "every", "next", "last", "first", "another", "same", "other", "slow", "fast",
    "large", "small", "new", "old", "missing", "stale", "broken", "healthy", "partial", "final", "early", "late", "remote", "local",
    "shared", "private", "public", "random", "sorted", "mixed", "padded", "packed", "cached", "pinned", "frozen", "reader", "writer", "sampler",
    "collator", "augmenter", "dispatcher", "broker", "gateway", "allocator", "arena", "buffer", "ring", "queue", "topic", "partition", "replica", "shard",
    "manifest", "index", "ledger", "catalogue", "bucket", "object", "snapshot", "checkpoint", "epoch", "step", "iteration", "loss", "gradient", "norm",
    "batch", "learning", "rate", "momentum", "warmup", "schedule", "validation", "evaluation", "accuracy", "metric", "training", "train", "eval", "test",
    "update", "total", "mean", "data", "time", "rank", "error", "waiting", "retrying", "resuming", "skipping", "merging", "flushing", "rotating",
    "draining", "warming", "computing", "estimating", "normalising", "projecting", "clipping", "scaling", "reducing", "gathering", "scattering", "broadcasting", "was", "is",
    "are", "were", "has", "have", "had", "will", "would", "could", "should", "may", "might", "did", "does", "not",
    "never", "always", "sometimes", "again", "already", "still", "only", "just", "about", "roughly", "nearly", "exactly", "seconds", "minutes",
    "rows", "tokens", "samples", "files", "bytes", "pages", "blocks", "layers", "heads", "experts", "nodes", "devices", "hosts", "lanes",
    "links", "ports", "sockets", "threads", "processes", "workers", "peers", "clients", "rounds", "resumed", "finished", "started", "stopped", "failed",
    "succeeded", "skipped", "dropped", "accepted", "rejected", "deferred", "scheduled", "cancelled", "expired", "renewed", "refreshed", "reloaded", "rebuilt", "restored",
    "saved", "written", "read", "sent", "received",
)  # fmt: skip


class At(NamedTuple):
    """Where in a run a line is written."""

    dice: random.Random
    rank: int
    step: int
    time: float

    def words(self, least: int, most: int) -> str:
        return " ".join(self.dice.choices(WORDS, k=self.dice.randint(least, most)))

    def word(self) -> str:
        return self.dice.choice(ENGLISH)

    def prose(self, least: int, most: int) -> str:
        return " ".join(self.dice.choices(ENGLISH, k=self.dice.randint(least, most)))

    def joined(self, words: tuple[str, ...], least: int, most: int) -> str:
        return "".join(self.dice.choices(words, k=self.dice.randint(least, most)))

    def hex(self, digits: int) -> str:
        return f"{self.dice.getrandbits(4 * digits):0{digits}x}"

    def base64(self, size: int) -> str:
        return b64encode(self.dice.randbytes(size)).decode()

    def value(self, low: float, high: float) -> float:
        return self.dice.uniform(low, high)

    def stamp(self, form: str = "%Y-%m-%d %H:%M:%S") -> str:
        return datetime.fromtimestamp(self.time, UTC).strftime(form)

    @property
    def millis(self) -> int:
        return int(self.time * 1000) % 1000


Line: TypeAlias = Callable[[At], str]

#: Megatron and plain PyTorch, as in the trial that the numbers in docs/benchmarks.md began with.
TORCH: tuple[tuple[int, Line], ...] = (
    (45, lambda a: f"[rank{a.rank}]: step {a.step}/1000000 | loss {a.value(1, 3):.4f} | grad_norm {a.value(0.5, 1.5):.3f} | lr {a.value(1e-5, 3e-4):.2e} | {a.value(200, 400):.1f} ms | {a.dice.randint(10_000, 60_000)} tok/s"),
    (10, lambda a: f" iteration {a.step:8d}/ 500000 | consumed samples: {a.step * 1024:12d} | elapsed time per iteration (ms): {a.value(800, 1500):.1f} | learning rate: {a.value(1e-5, 3e-4):.6E} | lm loss: {a.value(1, 3):.6E} | loss scale: 1.0 | grad norm: {a.value(0.5, 2):.3f} | number of skipped iterations: 0 | number of nan iterations: 0 |"),
    (10, lambda a: f"{a.stamp()},{a.millis:03d} INFO {a.words(1, 1)}:{a.dice.randint(1, 900)} {a.words(3, 14)} took {a.value(0, 50):.2f}s"),
    (7, lambda a: json.dumps({"ts": round(a.time, 3), "level": "info", "msg": a.words(6, 6), "rank": a.rank, "step": a.step, "mem_gb": round(a.value(10, 79), 2)})),
    (8, lambda a: f"host{a.rank:04d}:{a.dice.randint(100, 9999)}:{a.dice.randint(100, 9999)} [{a.rank % 8}] NCCL INFO Channel {a.dice.randint(0, 31):02d}/1 : {a.rank % 8}[0] -> 3[3] via P2P/CUMEM/read comm 0x{a.hex(12)} nRanks 512"),
    (6, lambda a: f"W{a.stamp('%m%d %H:%M:%S')}.{a.dice.randint(0, 999_999):06d} {a.dice.randint(100, 9999)} site-packages/torch/{a.words(1, 1)}.py:{a.dice.randint(1, 2000)}] {a.words(8, 8)}"),
    (6, lambda a: f'urllib3.connectionpool DEBUG https://s3.example "GET /corpus/{a.hex(8)}/shard-{a.dice.randint(0, 9999):05d}.tar HTTP/1.1" 206 {a.dice.randint(1000, 9_999_999)}'),
    (3, lambda a: f"/usr/lib/python3.11/site-packages/{a.words(1, 1)}.py:{a.dice.randint(1, 999)}: UserWarning: {a.words(12, 12)} ⚠ 模型"),
    (2, lambda a: f"Epoch {a.step // 1000}:  {a.step % 1000 // 10}%|{'█' * (a.step % 1000 // 34)}| {a.step % 1000}/1000 [00:{a.dice.randint(10, 59)}<01:{a.dice.randint(10, 59)}, {a.value(1, 9):.2f}it/s]"),
    (3, lambda a: a.words(1, 60)),
)  # fmt: skip

#: Hugging Face's Trainer and DeepSpeed under Ray, with loguru, wandb and rich beside them.
RAY: tuple[tuple[int, Line], ...] = (
    (20, lambda a: f"(RayTrainWorker pid={4000 + a.rank}, ip=10.0.{a.rank}.7) {{'loss': {a.value(1, 3):.4f}, 'grad_norm': {a.value(0.3, 2):.6f}, 'learning_rate': {a.value(1e-5, 9e-5)}, 'epoch': {a.step / 5000:.2f}}}"),
    (14, lambda a: f"[{a.stamp()},{a.millis:03d}] [INFO] [logging.py:96:log_dist] [Rank {a.rank}] step={a.step}, skipped=0, lr=[{a.value(1e-5, 9e-5)}], mom=[(0.9, 0.95)]"),
    (8, lambda a: f"[{a.stamp()},{a.millis:03d}] [INFO] [timer.py:260:stop] epoch=0/micro_step={a.step * 4}/global_step={a.step}, RunningAvgSamplesPerSec={a.value(20, 40):.6f}, CurrSamplesPerSec={a.value(20, 40):.6f}, MemAllocated=22.1GB, MaxMemAllocated=60.2GB"),
    (14, lambda a: f"{a.stamp()}.{a.millis:03d} | INFO     | trainer.loop:run:{a.dice.randint(80, 99)} - epoch {a.step // 5000} step {a.step} loss={a.value(1, 3):.5f} trace={a.hex(16)}"),
    (10, lambda a: f"{a.stamp()}.{a.millis:03d} | DEBUG    | {a.words(1, 1)}.{a.words(1, 1)}:{a.words(1, 1)}:{a.dice.randint(1, 300)} - {a.words(4, 18)}"),
    (6, lambda a: f"\r{a.step % 1000 // 10:3d}%|{'█' * (a.step % 1000 // 100)}{'▏▎▍▌▋▊▉'[a.step % 7]:<4}| {a.step % 1000}/1000 [{a.step % 1000 // 60:02d}:{a.step % 60:02d}<{(1000 - a.step % 1000) // 60:02d}:{59 - a.step % 60:02d},  1.{a.step % 90 + 10}it/s, loss={a.value(1, 3):.3f}]"),
    (6, lambda a: f"wandb: {a.words(2, 9)} https://wandb.example/{a.hex(8)}/runs/{a.hex(8)}"),
    (6, lambda a: f'INFO:     10.0.{a.rank}.{a.dice.randint(1, 99)}:{a.dice.randint(30_000, 60_000)} - "POST /v1/{a.words(1, 1)}/{a.hex(12)} HTTP/1.1" 200 OK'),
    (4, lambda a: f"{a.stamp()},{a.millis:03d} - httpx - INFO - HTTP Request: GET https://hub.example/api/{a.hex(10)}/resolve/main/model-{a.dice.randint(1, 9):05d}-of-00009.safetensors \"HTTP/1.1 200 OK\""),
    (2, lambda a: "=" * a.dice.randint(40, 120)),
    (3, lambda a: f"│ {a.words(1, 2):<24} │ {a.value(0, 9):8.4f} │ {a.dice.randint(1, 9999):>8} │"),
    (1, lambda a: "├" + "─" * 26 + "┼" + "─" * 10 + "┼" + "─" * 10 + "┤"),
    (3, lambda a: f"(raylet, ip=10.0.{a.rank}.7) [{a.stamp()},{a.millis:03d} I {a.dice.randint(100, 999)} {a.dice.randint(100, 999)}] (raylet) {a.words(1, 1)}_manager.cc:{a.dice.randint(1, 900)}: {a.words(4, 12)}"),
    (3, lambda a: f"/opt/conda/lib/python3.11/site-packages/torch/utils/checkpoint.py:{a.dice.randint(1, 900)}: FutureWarning: {a.words(6, 16)}"),
)  # fmt: skip

#: JAX, TensorFlow and Composer, with structured and coloured logs.
JAX: tuple[tuple[int, Line], ...] = (
    (16, lambda a: f"I{a.stamp('%m%d %H:%M:%S')}.{a.dice.randint(0, 999_999):06d} {140_000 + a.rank} train.py:{a.dice.randint(200, 203)}] completed step: {a.step}, seconds: {a.value(0.9, 1.4):.3f}, TFLOP/s/device: {a.value(200, 400):.3f}, Tokens/s/device: {a.value(3000, 6000):.3f}, loss: {a.value(1, 3):.3f}"),
    (14, lambda a: json.dumps({"timestamp": a.stamp("%Y-%m-%dT%H:%M:%S") + f".{a.millis:03d}Z", "level": "INFO", "event": "train_step", "trace_id": a.hex(16), "rank": a.rank, "step": a.step, "loss": round(a.value(1, 3), 4), "grad_norm": round(a.value(0.4, 2), 4)})),
    (10, lambda a: f'time={a.stamp("%Y-%m-%dT%H:%M:%S")}.{a.millis:03d}Z level=info msg="{a.words(2, 6)}" step={a.step} loss={a.value(1, 3):.4f} span={a.hex(8)}'),
    (8, lambda a: f"\x1b[2m{a.stamp()}\x1b[0m [\x1b[32m\x1b[1minfo     \x1b[0m] \x1b[1m{a.words(2, 4):<30}\x1b[0m \x1b[36mstep\x1b[0m=\x1b[35m{a.step}\x1b[0m \x1b[36mloss\x1b[0m=\x1b[35m{a.value(1, 3):.4f}\x1b[0m"),
    (8, lambda a: f"[epoch={a.step // 1000}/9][batch={a.step % 1000}/1000]: Train time/batch: {a.step} Train loss/train/total: {a.value(1, 3):.4f} Train metrics/{a.words(1, 1)}: {a.value(0, 1):.4f}"),
    (6, lambda a: f"{a.step % 1000:4d}/1000 [{'=' * (a.step % 1000 // 34)}>{'.' * (29 - a.step % 1000 // 34)}] - ETA: {a.dice.randint(1, 9)}:{a.dice.randint(10, 59)} - loss: {a.value(1, 3):.4f} - accuracy: {a.value(0, 1):.4f}"),
    (12, lambda a: f"{a.stamp()}.{a.dice.randint(0, 999_999):06d}: I tensorflow/core/{a.words(1, 1)}/{a.words(1, 1)}.cc:{a.dice.randint(1, 999)}] {a.words(4, 14)}"),
    (8, lambda a: f"I{a.stamp('%m%d %H:%M:%S')}.{a.dice.randint(0, 999_999):06d} {a.dice.randint(100, 9999)} {a.words(1, 1)}.py:{a.dice.randint(1, 900)}] {a.words(4, 10)} {a.hex(12)}"),
    (8, lambda a: f"{a.stamp('%H:%M:%S')} INFO  {a.words(1, 1)}: data loss estimate for {a.words(2, 5)} after error in {a.words(1, 2)}"),
    (6, lambda a: json.dumps({"severity": "DEBUG", "message": f"{a.words(3, 12)} \"{a.words(1, 2)}\"", "labels": {"pod": a.hex(8), "zone": "b"}, "latency_ms": round(a.value(1, 90), 1)})),
    (4, lambda a: f"[{a.stamp('%H:%M:%S')}] {a.words(1, 12)} Loss of precision: {a.words(1, 3)} error=0 failed=0"),
)  # fmt: skip

#: Lightning, NeMo, Detectron2, MMEngine and fairseq, with Slurm, Java and kernel-like loggers beside them.
VISION: tuple[tuple[int, Line], ...] = (
    (12, lambda a: f"[{a.stamp('%m/%d %H:%M:%S')}] d2.utils.events INFO:  eta: {a.dice.randint(0, 9)}:{a.dice.randint(10, 59)}:{a.dice.randint(10, 59)}  iter: {a.step}  total_loss: {a.value(0.5, 3):.4g}  loss_cls: {a.value(0.1, 1):.4g}  loss_box_reg: {a.value(0.1, 1):.4g}  time: {a.value(0.2, 0.5):.4f}  data_time: {a.value(0, 0.1):.4f}  lr: {a.value(1e-4, 2e-2):.5g}  max_mem: {a.dice.randint(4000, 30_000)}M"),
    (12, lambda a: f"{a.stamp('%Y/%m/%d %H:%M:%S')} - mmengine - INFO - Epoch(train) [{a.step // 2000 + 1}][{a.step % 2000:4d}/2000]  lr: {a.value(1e-4, 2e-2):.4e}  eta: {a.dice.randint(1, 9)} days, {a.dice.randint(1, 23)}:{a.dice.randint(10, 59)}:{a.dice.randint(10, 59)}  time: {a.value(0.2, 0.5):.4f}  data_time: {a.value(0, 0.1):.4f}  memory: {a.dice.randint(4000, 30_000)}  grad_norm: {a.value(1, 9):.4f}  loss: {a.value(0.5, 3):.4f}  decode.acc_seg: {a.value(10, 99):.4f}"),
    (10, lambda a: f"{a.stamp()} | INFO | train_inner | {{\"epoch\": {a.step // 5000 + 1}, \"update\": {a.step / 5000:.3f}, \"loss\": \"{a.value(3, 9):.3f}\", \"ppl\": \"{a.value(8, 90):.2f}\", \"wps\": \"{a.dice.randint(10_000, 90_000)}\", \"num_updates\": \"{a.step}\", \"gnorm\": \"{a.value(0.5, 2):.3f}\", \"train_wall\": \"{a.dice.randint(10, 99)}\"}}"),
    (12, lambda a: f"Epoch {a.step // 1000}: {a.step % 1000 // 10:3d}%|{'█' * (a.step % 1000 // 100):<10}| {a.step % 1000}/1000 [{a.step % 1000 // 60:02d}:{a.step % 60:02d}<{a.dice.randint(0, 59):02d}:{a.dice.randint(0, 59):02d},  {a.value(1, 9):.2f}it/s, v_num={a.dice.randint(1, 9)}, reduced_train_loss={a.value(1, 3):.3f}, global_step={a.step}.0, consumed_samples={a.step * 256}.0, train_step_timing in s={a.value(0.5, 1):.3f}]"),
    (8, lambda a: f"[NeMo I {a.stamp()} {a.words(1, 1)}_callback:{a.dice.randint(1, 400)}] {a.words(4, 16)}"),
    (5, lambda a: f"[NeMo W {a.stamp()} nemo_logging:{a.dice.randint(349, 350)}] {a.words(2, 9)}"),
    (8, lambda a: f"{a.stamp('%y/%m/%d %H:%M:%S')} INFO BlockManagerInfo: Removed broadcast_{a.dice.randint(1, 9999)}_piece{a.dice.randint(0, 9)} on 10.2.{a.rank}.{a.dice.randint(1, 250)}:{a.dice.randint(30_000, 50_000)} in memory (size: {a.value(1, 60):.1f} KiB, free: {a.value(1, 9):.1f} GiB)"),
    (6, lambda a: f"{a.stamp('%Y-%m-%dT%H:%M:%S')}.{a.millis:03d}+0000 [{a.words(1, 1)}-{a.dice.randint(1, 16)}] WARN  c.e.{a.words(1, 1)}.{a.words(1, 1).title()}Client - retry {a.dice.randint(1, 3)} of 3 for {a.hex(8)}-{a.hex(4)}-{a.hex(4)}-{a.hex(4)}-{a.hex(12)}: {a.words(3, 7)}"),
    (6, lambda a: f"slurmstepd-like: task {a.rank}: {a.words(1, 5)} cpu={a.value(0, 100):.1f}% rss={a.dice.randint(100_000, 9_000_000)}K"),
    (5, lambda a: f"[{a.dice.randint(1000, 99_999)}.{a.dice.randint(0, 999_999):06d}] {a.words(1, 1)}{a.dice.randint(0, 9)}: {a.words(3, 9)} 0x{a.hex(8)}"),
    (5, lambda a: f"  | Name{a.dice.randint(0, 99):<4}| {a.words(1, 1).title():<16}| {a.value(1, 900):.1f} M | train"),
    (4, lambda a: f"AP for {a.words(1, 1)}: {a.value(0, 99):.3f} | {a.words(1, 1)}: {a.value(0, 99):.3f} | nan"),
    (4, lambda a: f"[{a.stamp()},{a.millis:03d}][{a.words(1, 1)}][WARNING] - Skipping sample {a.hex(16)}: invalid crop, {a.words(2, 8)}"),
    (3, lambda a: "-" * a.dice.randint(30, 80)),
)  # fmt: skip

#: Reinforcement learning: verl, TRL, OpenRLHF and vLLM under Ray, with zap, klog, logrus and pino beside them.
RLHF: tuple[tuple[int, Line], ...] = (
    (10, lambda a: f"(TaskRunner pid={7000 + a.rank}) step:{a.step} - global_seqlen/min:{a.dice.randint(9_000, 20_000)} - actor/entropy:{a.value(0.1, 0.9):.3f} - actor/pg_loss:{a.value(-0.1, 0.1):.3f} - actor/grad_norm:{a.value(0.1, 1):.3f} - critic/score/mean:{a.value(0, 1):.3f} - response_length/mean:{a.value(200, 900):.3f} - timing_s/gen:{a.value(20, 60):.3f} - perf/throughput:{a.value(900, 1900):.3f}"),
    (12, lambda a: f"(WorkerDict pid={8000 + a.dice.randint(0, 7)}, ip=10.1.{a.rank}.4) INFO {a.stamp('%m-%d %H:%M:%S')} [{a.words(1, 1)}.py:{a.dice.randint(1, 900)}] {a.words(2, 9)} {a.value(0, 9):.2f} GiB"),
    (10, lambda a: f"INFO {a.stamp('%m-%d %H:%M:%S')} [loggers.py:{a.dice.randint(110, 119)}] Engine {a.rank:03d}: Avg prompt throughput: {a.value(10, 900):.1f} tokens/s, Avg generation throughput: {a.value(100, 9000):.1f} tokens/s, Running: {a.dice.randint(0, 256)} reqs, Waiting: {a.dice.randint(0, 99)} reqs, GPU KV cache usage: {a.value(0, 99):.1f}%, Prefix cache hit rate: {a.value(0, 99):.1f}%"),
    (10, lambda a: str({"loss": round(a.value(0, 1), 4), "grad_norm": a.value(0.1, 2), "learning_rate": a.value(1e-7, 1e-6), "num_tokens": float(a.step * 4096), "rewards/reward_func/mean": round(a.value(0, 1), 4), "kl": a.value(0, 0.1), "epoch": round(a.step / 9000, 2)})),
    (8, lambda a: f'{{"level":"info","ts":{a.time:.7f},"logger":"{a.words(1, 1)}","caller":"{a.words(1, 1)}/{a.words(1, 1)}.go:{a.dice.randint(1, 900)}","msg":"{a.words(2, 8)}","reconcileID":"{a.hex(8)}-{a.hex(4)}-{a.hex(12)}"}}'),
    (8, lambda a: f'{a.stamp("I%m%d %H:%M:%S")}.{a.dice.randint(0, 999_999):06d}       1 {a.words(1, 1)}_controller.go:{a.dice.randint(1, 900)}] "{a.words(2, 6)}" pod="ml/{a.words(1, 1)}-{a.hex(5)}" err="<nil>" duration="{a.value(0, 9):.6f}s"'),
    (8, lambda a: f'time="{a.stamp("%Y-%m-%dT%H:%M:%SZ")}" level=warning msg="{a.words(3, 9)}" component={a.words(1, 1)} attempt={a.dice.randint(1, 5)} request_id={a.hex(20)}'),
    (7, lambda a: json.dumps({"level": 30, "time": int(a.time * 1000), "pid": 4000 + a.rank, "hostname": f"node-{a.rank}", "reqId": a.hex(10), "msg": f"request completed in {a.dice.randint(1, 900)}ms: {a.words(1, 6)}"}, separators=(",", ":"))),
    (8, lambda a: f"Train epoch [{a.step // 1000 + 1}/3]: {a.step % 1000 // 10}%|{'█' * (a.step % 1000 // 100)}{'▏▎▍▌▋▊▉'[a.step % 7]}| {a.step % 1000}/1000 [{a.step % 1000 // 60:02d}:{a.step % 60:02d}<{a.dice.randint(10, 59)}:{a.dice.randint(10, 59)}, {a.value(1, 9):.2f}s/it, pg={a.value(-1, 1):.3f}, ret={a.value(0, 1):.3f}, glen={a.value(200, 900):.0f}, act_lr={a.value(1e-7, 1e-6):.2e}]"),
    (6, lambda a: f"\x1b[36m(pid={9000 + a.dice.randint(0, 63)})\x1b[0m \x1b[32m{a.stamp('%H:%M:%S')}\x1b[0m \x1b[33m{a.words(1, 1):<12}\x1b[0m {a.words(3, 12)} \x1b[2m{a.hex(12)}\x1b[0m"),
    (5, lambda a: f"Sample {a.dice.randint(0, 99)}: Q: {a.words(6, 30)}? A: {a.words(4, 40)}. score={a.value(0, 1):.2f}"),
    (4, lambda a: f"[{a.words(1, 1)}] {a.stamp('%d/%b/%Y:%H:%M:%S')} +0000 \"PUT /checkpoints/{a.hex(8)}/{a.hex(8)}.part HTTP/1.1\" {a.dice.choice((200, 201, 206))} {a.dice.randint(100, 9_999_999)} \"-\" \"aws-cli/2.{a.dice.randint(1, 30)}\""),
    (4, lambda a: f"Loading safetensors checkpoint shards: {a.dice.randint(0, 100):3d}% Completed | {a.dice.randint(1, 40)}/40 [00:{a.dice.randint(10, 59)}<00:{a.dice.randint(10, 59)},  {a.value(1, 5):.2f}it/s]"),
)  # fmt: skip

#: Speech and search: TensorFlow under Horovod, Paddle, MXNet, ESPnet and XGBoost, with uvicorn, systemd and nvidia-smi beside them.
SPEECH: tuple[tuple[int, Line], ...] = (
    (12, lambda a: f"[1,{a.rank}]<stderr>:INFO:tensorflow:loss = {a.value(1, 9):.6f}, step = {a.step} ({a.value(1, 9):.3f} sec)"),
    (6, lambda a: f"[1,{a.rank}]<stdout>:INFO:tensorflow:global_step/sec: {a.value(1, 9):.5f}"),
    (12, lambda a: f"[{a.stamp()},{a.millis:03d}] [    INFO] - global step {a.step}, epoch: {a.step // 900}, batch: {a.step % 900}, loss: {a.value(1, 4):.5f}, avg_reader_cost: {a.value(0, 0.1):.5f} sec, avg_batch_cost: {a.value(0.1, 0.6):.5f} sec, ips: {a.value(10, 90):.5f} tokens/s"),
    (9, lambda a: f"{a.stamp('%d-%b-%Y %H:%M:%S')} INFO:root:Epoch[{a.step // 700}] Batch [{a.step % 700}]\tSpeed: {a.value(100, 900):.2f} samples/sec\taccuracy={a.value(0, 1):.6f}\tcross-entropy={a.value(0.5, 4):.6f}"),
    (10, lambda a: f"[{a.words(1, 1)}-node{a.rank:02d}] {a.stamp()},{a.millis:03d} (trainer:{a.dice.randint(730, 739)}) INFO: {a.step // 500}epoch:train:{a.step % 500 + 1}-{a.step % 500 + 50}batch: iter_time={a.value(1e-4, 9e-4):.3e}, forward_time={a.value(0.1, 0.4):.3f}, loss_ctc={a.value(20, 90):.3f}, loss={a.value(20, 90):.3f}, backward_time={a.value(0.1, 0.4):.3f}, optim0_lr0={a.value(1e-5, 9e-4):.3e}, train_time={a.value(1, 3):.3f}"),
    (5, lambda a: f"[{a.step % 1000}]\ttrain-logloss:{a.value(0.1, 0.6):.5f}\tvalid-logloss:{a.value(0.1, 0.6):.5f}"),
    (8, lambda a: f'INFO:     10.4.{a.rank}.{a.dice.randint(1, 250)}:{a.dice.randint(30_000, 60_000)} - "GET /{a.words(1, 1)}/{a.hex(6)}?page={a.dice.randint(1, 99)} HTTP/1.1" {a.dice.choice((200, 304, 404))}'),
    (8, lambda a: f"{a.stamp('%b %d %H:%M:%S')} gpu-{a.rank:03d} systemd[1]: {a.words(1, 1)}-{a.hex(5)}.service: {a.words(2, 7)}."),
    (8, lambda a: f"    {a.dice.randint(0, 7)}   {a.dice.randint(60, 700):4d}   {a.dice.randint(30, 80):3d}     -   {a.dice.randint(0, 100):3d}   {a.dice.randint(0, 100):3d}     0     0   {a.dice.randint(1000, 3000)}   {a.dice.randint(900, 1980)}"),
    (7, lambda a: f"{a.stamp('%Y-%m-%dT%H:%M:%S')}.{a.dice.randint(0, 999_999):06d}Z [{a.words(1, 1):<9}] {a.words(2, 6):<40} [{a.words(1, 1)}.{a.words(1, 1)}] duration_ms={a.value(1, 900):.1f} key={a.words(1, 1)}/{a.hex(32)} user_id={a.dice.randint(1, 10**6)}"),
    (6, lambda a: f"[{a.stamp('%Y-%m-%d %H:%M:%S')}.{a.dice.randint(0, 999_999):06d}][{a.dice.randint(1, 9999)}][{a.dice.choice(('info', 'warning'))}][{a.words(1, 1)}] [{a.words(1, 1)}.cc:{a.dice.randint(1, 999)}] {a.words(3, 11)} id={a.hex(12)}"),
    (5, lambda a: f"utterance {a.hex(4)}-{a.dice.randint(1000, 9999)}-{a.dice.randint(0, 99):04d} wer={a.value(0, 40):.2f} hyp: {a.words(4, 30)}"),
    (4, lambda a: f"\r{a.words(1, 1)}: {a.dice.randint(0, 100):3d}%|{'#' * a.dice.randint(0, 10):<10}| {a.dice.randint(1, 400)}/400 [{a.dice.randint(0, 9):02d}:{a.dice.randint(0, 59):02d}<{a.dice.randint(0, 9):02d}:{a.dice.randint(0, 59):02d}, {a.value(1, 90):.2f}utt/s]"),
)  # fmt: skip

#: Biology and weather: OpenFold and Anemoi with Lightning, TorchTitan, NVIDIA BioNeMo, PyG and CatBoost, with Dask, MLflow, Kafka, Envoy and
#: Fluent Bit beside them. Written after the reader was changed, for a first rate.
SCIENCE: tuple[tuple[int, Line], ...] = (
    (12, lambda a: f"[titan] {a.stamp()},{a.millis:03d} - root - INFO - step: {a.step:6d}  loss: {a.value(1, 9):7.4f}  grad_norm: {a.value(0.1, 2):.4f}  memory: {a.value(20, 70):.2f}GiB({a.value(20, 90):.2f}%)  tps: {a.dice.randint(1, 9)},{a.dice.randint(100, 999)}  mfu: {a.value(10, 50):.2f}%"),
    (10, lambda a: f"Training epoch {a.step // 400}, iteration {a.step % 400}/399 | lr: {a.value(1e-6, 9e-4):.3e} | global_batch_size: 256 | global_step: {a.step} | reduced_train_loss: {a.value(0.5, 4):.4f} | train_step_timing in s: {a.value(0.4, 2):.4f} | consumed_samples: {a.step * 256}"),
    (8, lambda a: f"Epoch: {a.step // 300:03d}, Batch: {a.step % 300:04d}, Loss: {a.value(0.1, 2):.4f}, Val: {a.value(0.4, 0.9):.4f}, Time: {a.value(0.1, 2):.3f}s"),
    (6, lambda a: f"{a.step % 1000}:\tlearn: {a.value(0.1, 0.9):.7f}\ttest: {a.value(0.1, 0.9):.7f}\tbest: {a.value(0.1, 0.9):.7f} ({a.step % 1000})\ttotal: {a.value(1, 90):.2f}s\tremaining: {a.dice.randint(1, 59)}m {a.dice.randint(1, 59)}s"),
    (8, lambda a: f"{a.stamp('%Y-%m-%d %H:%M:%S')},{a.millis:03d} anemoi.training.{a.words(1, 1)}.{a.words(1, 1)} INFO     {a.words(3, 10)} member={a.dice.randint(0, 50)} lead_time={a.dice.randint(6, 240)}h id={a.hex(8)}-{a.hex(4)}-4{a.hex(3)}"),
    (10, lambda a: f"{a.stamp()},{a.millis:03d} - distributed.{a.words(1, 1)} - INFO - {a.words(2, 8)} tcp://10.7.{a.rank}.{a.dice.randint(1, 250)}:{a.dice.randint(30_000, 60_000)}; key: ('{a.words(1, 1)}-{a.hex(32)}', {a.dice.randint(0, 900)})"),
    (8, lambda a: f'[{a.stamp("%Y-%m-%dT%H:%M:%S")}.{a.millis:03d}Z] "POST /api/2.0/mlflow/runs/log-batch HTTP/2" {a.dice.choice((200, 200, 429))} - "-" {a.dice.randint(100, 9999)} {a.dice.randint(2, 900)} {a.dice.randint(1, 900)} "10.7.{a.rank}.{a.dice.randint(1, 250)}" "python/{a.words(1, 1)}" "{a.hex(8)}-{a.hex(4)}-{a.hex(4)}-{a.hex(12)}" "mlflow.{a.words(1, 1)}:5000"'),
    (8, lambda a: f"%{a.dice.randint(3, 7)}|{int(a.time)}.{a.millis:03d}|{a.words(1, 1).upper()}|rdkafka#producer-{a.dice.randint(1, 4)}| [thrd:{a.words(1, 1)}]: broker/{a.dice.randint(1, 9)}: {a.words(3, 9)} (after {a.dice.randint(1, 900)}ms in state UP)"),
    (7, lambda a: f"[{a.stamp('%Y/%m/%d %H:%M:%S')}] [ info] [{a.words(1, 1)}:{a.words(1, 1)}.{a.dice.randint(0, 9)}] {a.words(2, 7)} inode={a.dice.randint(10**6, 10**8)} offset={a.dice.randint(0, 10**9)}"),
    (7, lambda a: json.dumps({"asctime": a.stamp() + f",{a.millis:03d}", "name": f"openfold.{a.words(1, 1)}", "levelname": "INFO", "message": f"{a.words(3, 9)} {a.hex(4)}_{a.dice.choice('ABCD')}", "taskName": None})),
    (6, lambda a: f"{a.hex(4)}_{a.dice.choice('ABCD')} {a.dice.randint(50, 900)} residues: plddt {a.value(30, 95):.2f} ptm {a.value(0, 1):.3f} recycles {a.dice.randint(1, 20)} {a.words(1, 6)}"),
    (5, lambda a: f"/opt/venv/lib/python3.12/site-packages/{a.words(1, 1)}/{a.words(1, 1)}.py:{a.dice.randint(1, 999)}: {a.dice.choice(('RuntimeWarning', 'DeprecationWarning'))}: {a.words(5, 15)}"),
    (5, lambda a: f"\rSampling {a.words(1, 1)}: {a.dice.randint(0, 100):3d}%|{'━' * a.dice.randint(0, 20)}{' ' * a.dice.randint(0, 5)}| {a.dice.randint(1, 500)}/500 [{a.dice.randint(0, 9):02d}:{a.dice.randint(0, 59):02d}<{a.dice.randint(0, 9):02d}:{a.dice.randint(0, 59):02d}, {a.value(1, 90):.2f}it/s]"),
)  # fmt: skip

#: Robots and recommendations: LeRobot, RSL-RL, TorchRec, timm and Keras 3, with ROS 2, Airflow, Celery, nginx, PostgreSQL and Triton beside them.
#: Written after the scan for words of progress became the first step, for a first rate.
ROBOTS: tuple[tuple[int, Line], ...] = (
    (12, lambda a: f"INFO {a.stamp()} ot_train.py:{a.dice.randint(350, 353)} step:{a.step // 1000}K smpl:{a.step * 64 // 1000}K ep:{a.step // 50} epch:{a.step / 4000:.2f} loss:{a.value(0.01, 2):.3f} grdn:{a.value(0.1, 9):.3f} lr:{a.value(1e-6, 1e-4):.1e} updt_s:{a.value(0.1, 0.6):.3f} data_s:{a.value(0, 0.1):.3f}"),
    (10, lambda a: f"Train: {a.step // 1251} [{a.step % 1251:4d}/1251 ({a.step % 1251 * 100 // 1251:3d}%)]  Loss: {a.value(1, 7):.3g} ({a.value(1, 7):.3g})  Time: {a.value(0.1, 0.9):.3f}s, {a.value(900, 4000):7.2f}/s  LR: {a.value(1e-6, 1e-3):.3e}  Data: {a.value(0, 0.1):.3f} ({a.value(0, 0.1):.3f})"),
    (9, lambda a: f"{a.stamp('%Y-%m-%d %H:%M:%S')},{a.millis:03d} [rank:{a.rank}] torchrec.train INFO: global_step={a.step} ne={a.value(0.7, 0.9):.5f} loss={a.value(0.1, 0.9):.5f} qps={a.dice.randint(100_000, 900_000)} batch_id={a.hex(12)}"),
    (7, lambda a: f"{a.step % 782 + 1}/782 ━━━━━━━━━━━━━━━━━━━━ {a.dice.randint(1, 59)}s {a.dice.randint(10, 90)}ms/step - accuracy: {a.value(0, 1):.4f} - loss: {a.value(0.2, 3):.4f}"),
    (7, lambda a: f"                      Learning iteration {a.step}/30000                      "),
    (6, lambda a: f"                     Mean {a.words(1, 1)} loss: {a.value(0, 2):.4f}"),
    (10, lambda a: f"[INFO] [{a.time:.9f}] [{a.words(1, 1)}_{a.words(1, 1)}]: {a.words(2, 9)} frame={a.dice.randint(1, 10**6)} drift={a.value(-1, 1):.3f}m"),
    (8, lambda a: f"[{a.stamp('%Y-%m-%dT%H:%M:%S')}.{a.millis:03d}+0000] {{{a.words(1, 1)}instance.py:{a.dice.randint(1000, 2999)}}} INFO - {a.words(3, 10)} run_id=manual__{a.hex(8)} try_number={a.dice.randint(1, 3)}"),
    (8, lambda a: f"[{a.stamp()},{a.millis:03d}: INFO/ForkPoolWorker-{a.dice.randint(1, 32)}] Task {a.words(1, 1)}.{a.words(1, 1)}[{a.hex(8)}-{a.hex(4)}-{a.hex(4)}-{a.hex(4)}-{a.hex(12)}] succeeded in {a.value(0, 9)}s: None"),
    (8, lambda a: f'10.8.{a.rank}.{a.dice.randint(1, 250)} - - [{a.stamp("%d/%b/%Y:%H:%M:%S")} +0000] "GET /{a.words(1, 1)}/{a.hex(10)}?{a.words(1, 1)}={a.dice.randint(1, 999)} HTTP/1.1" {a.dice.choice((200, 206, 304, 404))} {a.dice.randint(100, 99_999)} "-" "python-requests/2.{a.dice.randint(1, 32)}"'),
    (6, lambda a: f"{a.stamp()}.{a.millis:03d} UTC [{a.dice.randint(100, 9999)}] LOG:  duration: {a.value(1, 900):.3f} ms  statement: SELECT {a.words(1, 1)}, {a.words(1, 1)} FROM {a.words(1, 1)}s WHERE id = {a.dice.randint(1, 10**7)}"),
    (5, lambda a: f"I{a.stamp('%m%d %H:%M:%S')}.{a.dice.randint(0, 999_999):06d} 1 {a.words(1, 1)}_lifecycle.cc:{a.dice.randint(1, 999)}] \"{a.words(2, 6)} '{a.words(1, 1)}_{a.dice.randint(1, 9)}'\""),
    (4, lambda a: f"{a.words(4, 24)}"),
)  # fmt: skip

#: MindSpore, PaddleNLP, LLaMA-Factory, ColossalAI and a trainer with Japanese text, with Chinese services beside them; JSON with escapes and bytes as Python writes them.
#: Written to look for lines that are handed on one by one, for a first rate.
ASIA: tuple[tuple[int, Line], ...] = (
    (12, lambda a: f"epoch: {a.step // 500} step: {a.step % 500}, loss is {a.value(1, 5)}"),
    (6, lambda a: f"Train epoch time: {a.value(1e5, 9e5):.3f} ms, per step time: {a.value(100, 900):.3f} ms"),
    (8, lambda a: f"[WARNING] ME({a.dice.randint(1000, 99999)}:{a.dice.randint(10**14, 10**15)},MainProcess):{a.stamp('%Y-%m-%d-%H:%M:%S')}.{a.millis:03d}.{a.dice.randint(0, 999):03d} [mindspore/{a.words(1, 1)}/{a.words(1, 1)}.py:{a.dice.randint(1, 900)}] {a.words(3, 9)}"),
    (10, lambda a: f"【{a.stamp('%Y年%m月%d日 %H:%M:%S')}】进程{a.rank}：第{a.step}步，损失={a.value(1, 5):.4f}，学习率={a.value(1e-5, 3e-4):.2e}，{a.joined(HAN, 1, 4)}"),
    (10, lambda a: f"{a.stamp('%Y/%m/%d %H:%M:%S')}.{a.millis:03d} [情報] ランク{a.rank} ステップ {a.step} loss={a.value(1, 5):.4f} 勾配ノルム={a.value(0.1, 2):.3f} {a.joined(KANA, 1, 5)}"),
    (10, lambda a: f"[INFO|trainer.py:{a.dice.randint(2100, 2400)}] {a.stamp()},{a.millis:03d} >> {{'loss': {a.value(1, 3):.4f}, 'grad_norm': {a.value(0.3, 2)}, 'learning_rate': {a.value(1e-7, 1e-4)}, 'epoch': {a.step / 5000:.2f}, 'num_input_tokens_seen': {a.step * 8192}}}"),
    (8, lambda a: f"[{a.stamp('%m/%d/%y %H:%M:%S')}] INFO     colossalai - colossalai - INFO: [Rank {a.rank}] [Epoch {a.step // 900} / Step {a.step % 900}] Loss: {a.value(1, 3):.4f} | Throughput: {a.value(10, 90):.2f} TFLOPS"),
    (8, lambda a: f"{a.stamp('%Y-%m-%d %H:%M:%S')} +0800 [{a.words(1, 1)}-{a.dice.randint(1, 9)}] 警告 {a.joined(HAN, 4, 16)}：{a.hex(16)}，耗时{a.dice.randint(1, 9000)}毫秒"),
    (8, lambda a: f"{a.joined(KANA, 6, 30)}。{a.joined(KANA, 2, 12)}（{a.dice.randint(1, 99)}件）"),
    (8, lambda a: json.dumps({"时间": a.stamp(), "级别": "信息", "内容": a.joined(HAN, 4, 16), "rank": a.rank, "耗时": round(a.value(1, 90), 2)}, ensure_ascii=a.dice.random() < 0.5)),
    (8, lambda a: json.dumps({"时间": a.stamp(), "消息": a.joined(HAN, 2, 9), "rank": a.rank, "step": a.step, "loss": round(a.value(1, 5), 4), "备注": a.joined(HAN, 1, 3)})),
    (6, lambda a: f"INFO {a.stamp()} tokens: {a.dice.randbytes(6)!r} text={a.joined(HAN, 1, 4).encode()!r} step {a.step} loss {a.value(1, 5):.3f}"),
    (6, lambda a: f"I{a.stamp('%m%d %H:%M:%S')}.{a.dice.randint(0, 999_999):06d} {a.dice.randint(100, 9999)} {a.words(1, 1)}.cc:{a.dice.randint(1, 900)}] {a.joined(HAN, 2, 9)} {a.words(1, 5)} step_id={a.hex(12)}"),
    (6, lambda a: f"训练进度: {a.step % 1000 // 10:3d}%|{'█' * (a.step % 1000 // 100):<10}| {a.step % 1000}/1000 [{a.step % 1000 // 60:02d}:{a.step % 60:02d}<{a.dice.randint(0, 59):02d}:{a.dice.randint(0, 59):02d}, {a.value(1, 9):.2f}it/s, 损失={a.value(1, 3):.3f}]"),
)  # fmt: skip

#: Trainers in Rust and Go and one that logs OpenTelemetry JSON, several ranks in one file, with logfmt in nanoseconds, syslog and nested JSON beside them.
#: Written like the one before.
SERVICES: tuple[tuple[int, Line], ...] = (
    (12, lambda a: f"{a.stamp('%Y-%m-%dT%H:%M:%S')}.{a.dice.randint(0, 999_999):06d}Z  INFO train{{rank={a.dice.randint(0, 7)} world=8}}:step{{step={a.step}}}: trainer::{a.words(1, 1)}: loss={a.value(1, 3)} grad_norm={a.value(0.1, 2)} lr={a.value(1e-6, 1e-4)}"),
    (12, lambda a: f'ts={int(a.time * 1e9) + a.dice.randint(0, 10**6)} lvl=info rank={a.dice.randint(0, 7)} msg="step done" step={a.step} loss={a.value(1, 3):.5f} tok_s={a.dice.randint(10_000, 90_000)} uid={a.dice.randint(10**18, 2**63)}'),
    (10, lambda a: json.dumps({"timeUnixNano": str(int(a.time * 1e9)), "severityText": "INFO", "body": {"stringValue": "train_step"}, "attributes": [{"key": "rank", "value": {"intValue": str(a.rank)}}, {"key": "step", "value": {"intValue": str(a.step)}}, {"key": "loss", "value": {"doubleValue": a.value(1, 3)}}], "traceId": a.hex(32), "spanId": a.hex(16)}, separators=(",", ":"))),
    (10, lambda a: json.dumps({"time": a.stamp("%Y-%m-%dT%H:%M:%S") + f".{a.millis:03d}+05:30", "level": "info", "metrics": {"train": {"loss": a.value(1, 3), "grad_norm": a.value(0.1, 2)}, "perf": {"mfu": a.value(0.1, 0.6), "tps": a.dice.randint(1000, 9999)}}, "progress": {"global_step": a.step, "epoch": a.step // 900}, "host": {"name": f"gpu-{a.rank}", "pid": a.dice.randint(100, 99_999)}})),
    (8, lambda a: f"loss {a.value(1, 3):.4f} norm {a.value(0.1, 2):.3f} [{a.dice.randint(0, 7)}/8] after {a.value(0.1, 2):.2f}s @ step {a.step}"),
    (8, lambda a: f"r{a.dice.randint(0, 7)}> {a.stamp('%H:%M:%S')}.{a.millis:03d} #{a.step} loss:{a.value(1, 3):.4f} ppl:{a.value(3, 20):.2f} wps:{a.dice.randint(1000, 9999)}"),
    (8, lambda a: f"<{a.dice.randint(8, 191)}>1 {a.stamp('%Y-%m-%dT%H:%M:%S')}.{a.dice.randint(0, 999_999):06d}-07:00 gpu-{a.rank} {a.words(1, 1)} {a.dice.randint(100, 99_999)} ID{a.dice.randint(1, 99)} [meta@32473 seq=\"{a.dice.randint(1, 10**9)}\"] {a.words(3, 12)}"),
    (8, lambda a: json.dumps({"@timestamp": a.stamp("%Y-%m-%dT%H:%M:%S") + f".{a.millis:03d}Z", "log": {"level": "WARN", "logger": f"{a.words(1, 1)}.{a.words(1, 1)}", "origin": {"file": {"line": a.dice.randint(1, 900), "name": f"{a.words(1, 1)}.rs"}}}, "message": a.words(3, 12), "event": {"id": a.dice.randint(10**18, 2**64), "tags": a.dice.choices(("a", "b", "step", "loss"), k=2)}})),
    (6, lambda a: f"time={a.stamp('%Y-%m-%dT%H:%M:%S')}.{a.dice.randint(0, 10**9):09d}+02:00 level=DEBUG source={a.words(1, 1)}.go:{a.dice.randint(1, 900)} msg={a.words(1, 1)} bytes={a.dice.randint(1, 10**12)} took={a.value(1, 900):.3f}µs id={a.dice.getrandbits(128)}"),
    (6, lambda a: f"{int(a.time)}.{a.dice.randint(0, 999_999):06d}\t{a.words(1, 1).upper()}\t{a.rank}\t{a.step}\t{a.value(1, 3):.6f}\t{a.hex(24)}"),
    (6, lambda a: f"thread '{a.words(1, 1)}-{a.dice.randint(1, 64)}' at src/{a.words(1, 1)}.rs:{a.dice.randint(1, 900)}:{a.dice.randint(1, 80)}: {a.words(3, 14)} ({a.dice.randint(1, 9)} errors)"),
    (6, lambda a: f"GPU{a.dice.randint(0, 7)} {a.dice.randint(30, 80)}C {a.dice.randint(60, 700)}W mem={a.dice.randint(1, 80_000)}MiB step_time_ms={a.value(100, 900):.1f} (n={a.step})"),
)  # fmt: skip

#: A laboratory's own trainer that writes sentences, Flower rounds, XGBoost, LightGBM and Stan, with log4j, Elixir, tracing spans and a shell script beside them; clocks count from the start, in milliseconds, or are those of a journal.
#: Written to look for prose whose every line is new, for a first rate.
PROSE: tuple[tuple[int, Line], ...] = (
    (14, lambda a: f"{a.time - 1_794_700_000:12.3f}s  {a.word().title()} {a.prose(6, 18)}, {a.prose(2, 9)} ({a.dice.randint(1, 9999)} {a.word()})."),
    (10, lambda a: f"[+{int(a.time - 1_794_700_000) // 3600:02d}:{int(a.time) // 60 % 60:02d}:{int(a.time) % 60:02d}] lab.{a.word()}: at step {a.step} the loss is {a.value(1, 3):.4f} and {a.prose(3, 10)}"),
    (8, lambda a: f"{int(a.time * 1000)} {a.word().upper():>9} <{a.rank}> {a.prose(4, 20)}; step {a.word()}, epoch {a.word()}; {a.prose(1, 6)}"),
    (8, lambda a: f"INFO :      [ROUND {a.step // 40}] {a.prose(3, 9)}: received {a.dice.randint(1, 99)} results and {a.dice.randint(0, 3)} failures after {a.value(1, 90):.1f} {a.word()}"),
    (8, lambda a: f"[{a.step}]\ttrain-rmse:{a.value(0.1, 2):.5f}\teval-rmse:{a.value(0.1, 2):.5f}"),
    (6, lambda a: f"[LightGBM] [Info] {a.prose(3, 8)}: {a.dice.randint(1, 10**6)}, number of {a.word()}: {a.dice.randint(1, 900)}"),
    (6, lambda a: f"Chain {a.rank + 1}: Iteration: {a.step:5d} / 20000 [{a.step * 100 // 20000:3d}%]  ({a.word().title()})"),
    (10, lambda a: f"{a.stamp('%d %b %Y %H:%M:%S')},{a.millis:03d} [{a.word()}-{a.dice.randint(1, 64)}] {a.dice.choice(('INFO ', 'WARN ', 'DEBUG'))} org.lab.{a.word()}.{a.word().title()}{a.word().title()}:{a.dice.randint(1, 900)} - {a.prose(5, 22)}"),
    (8, lambda a: f"{a.stamp('%H:%M:%S')}.{a.millis:03d} request_id=F{a.hex(12).upper()} [{a.dice.choice(('info', 'warning'))}] {a.prose(3, 12)} in {a.dice.randint(1, 900)}µs"),
    (6, lambda a: f"{a.stamp('%b %d %H:%M:%S')} gpu-{a.rank} {a.word()}[{a.dice.randint(100, 99999)}]: {a.prose(4, 14)}, batch {a.word()} loss {a.word()} {a.dice.randint(1, 99)}"),
    (6, lambda a: f"+ {a.word()} --{a.word()}={a.dice.randint(1, 99)} --{a.word()} /scratch/{a.word()}/{a.hex(6)} # {a.prose(2, 9)}"),
    (6, lambda a: f"Epoch {a.step // 900 + 1} - {a.prose(2, 6)} - {a.value(0.1, 3):.4f} {a.word()}, {a.value(0.1, 3):.4f} {a.word()}"),
    (4, lambda a: a.prose(3, 60).capitalize() + "."),
)  # fmt: skip

#: Fine-tuning: torchtune, axolotl, Accelerate with rich, verl, Ray Tune and Keras callbacks, which print their metrics as dictionaries, in an order or a choice of their own, with an uploader, an evaluation and mlflow beside them.
#: A cluster's own services: log4j under Spring, zap's console, slog, Rust's coloured spans with Windows line ends, .NET, syslog with structured data, Fluent Bit around a trainer's lines and
#: python-json-logger with keys in any order, with DCGM, envelopes in base64 and clocks that are floats beside them. Written like the one before.
CLUSTER: tuple[tuple[int, Line], ...] = (
    (10, lambda a: json.dumps({"date": round(a.time, 6), "stream": "stdout", "log": f"step {a.step} loss {a.value(1, 3):.4f} grad_norm {a.value(0.1, 2):.3f}", "kubernetes": {"pod_name": f"train-{a.rank}", "namespace_name": "ml", "pod_id": f"{a.hex(8)}-{a.hex(4)}-4{a.hex(3)}-{a.hex(4)}-{a.hex(12)}", "docker_id": a.hex(64)}})),
    (10, lambda a: json.dumps({"asctime": f"{a.stamp()},{a.millis:03d}", "levelname": "INFO", "name": f"trainer.{a.words(1, 1)}", "message": a.words(1, 5), "step": a.step, "loss": a.value(1, 3), "rank": a.rank, "span": a.hex(16)})),
    (9, lambda a: f"\x1b[2m{a.stamp()}.{a.dice.randint(0, 999_999):06d}\x1b[0m \x1b[32m INFO\x1b[0m \x1b[1mtrain\x1b[0m\x1b[1m{{\x1b[0m\x1b[3mid\x1b[0m\x1b[2m=\x1b[0m\"{a.base64(9)}\"\x1b[1m}}\x1b[0m\x1b[2m:\x1b[0m \x1b[2mcandle::{a.words(1, 1)}\x1b[0m\x1b[2m:\x1b[0m {a.words(1, 3)} \x1b[3mstep\x1b[0m\x1b[2m=\x1b[0m{a.step} \x1b[3mloss\x1b[0m\x1b[2m=\x1b[0m{a.value(1, 3):.6f}\r"),
    (8, lambda a: f"{a.stamp()}.{a.millis:03d}  INFO 1 --- [{a.words(1, 1):>15}-{a.dice.randint(1, 32)}] c.e.t.{a.words(1, 1).title()}Service{'':<20}: {a.words(2, 10)} txId={a.base64(16)}"),
    (8, lambda a: f'{a.stamp("%Y-%m-%dT%H:%M:%S")}.{a.millis:03d}Z\tINFO\t{a.words(1, 1)}\t{a.words(1, 1)}/{a.words(1, 1)}.go:{a.dice.randint(1, 900)}\t{a.words(1, 3)}\t' + json.dumps({"step": a.step, "loss": a.value(1, 3), "pod": f"train-{a.rank}", "uid": a.hex(12)})),
    (8, lambda a: f'<134>1 {a.stamp("%Y-%m-%dT%H:%M:%S")}.{a.millis:03d}Z gpu-{a.rank} trainer {a.dice.randint(100, 9999)} STEP [m@32473 ' + " ".join(f'{name}="{value}"' for name, value in ({"step": a.step, "loss": round(a.value(1, 3), 4), "etag": a.base64(15), "took": a.dice.randint(1, 900)}).items()) + "] done"),
    (8, lambda a: f"info: Trainer.{a.words(1, 1).title()}Loop[{a.dice.randint(0, 9)}]\r"),
    (8, lambda a: f"Step {a.step} of 90000: Loss {a.value(1, 3):.5f}, {a.words(1, 3)}, {a.value(1, 90):.1f} ms\r"),
    (8, lambda a: f'time={a.stamp("%Y-%m-%dT%H:%M:%S")}.{a.millis:03d}Z level={a.dice.choice(("INFO", "WARN"))} source={a.words(1, 1)}.go:{a.dice.randint(1, 900)} msg="{a.words(2, 7)}" token={a.base64(20)} trace.id={a.hex(32)}'),
    (7, lambda a: f"{a.time:.6f} [I] ({a.words(1, 1)}) iteration {a.step}: loss={a.value(1, 3):.4f} data={a.base64(12)} lr={a.value(1e-6, 1e-4):.3e}"),
    (6, lambda a: f'DCGM_FI_DEV_{a.words(1, 1).upper()}{{gpu="{a.dice.randint(0, 7)}",UUID="GPU-{a.hex(8)}-{a.hex(4)}-{a.hex(4)}-{a.hex(4)}-{a.hex(12)}",Hostname="gpu-{a.rank}"}} {a.value(0, 900):.1f}'),
    (6, lambda a: json.dumps({"level": "info", "ts": a.time, "msg": a.words(2, 7), "payload": a.base64(a.dice.randint(20, 90)), "n": a.dice.randint(1, 10**6)})),
    (4, lambda a: f"{a.stamp('%b %d, %Y %I:%M:%S %p')} {a.words(1, 1)}.{a.words(1, 1)} run\r"),
)  # fmt: skip

#: Fine-tuning with bars that are wiped out to let a line through, and lines of each rank that say nothing but their rank.
FINETUNE: tuple[tuple[int, Line], ...] = (
    (30, lambda a: f"\r{a.step % 9000 // 90:3d}%|{'█' * (a.step % 9000 // 900):<10}| {a.step % 9000}/9000 [{a.step // 60:02d}:{a.step % 60:02d}<{a.dice.randint(1, 9)}:{a.dice.randint(10, 59)}:{a.dice.randint(10, 59)},  {a.value(1, 4):.2f}s/it]"),
    (20, lambda a: f"[{a.stamp()},{a.millis:03d}] [accelerate.utils.memory] [rank {a.dice.randint(0, 31)}] allocated={a.value(20, 30):.2f}GB reserved={a.value(50, 60):.2f}GB peak={a.value(50, 60):.2f}GB"),
    (14, lambda a: f"\r{' ' * 90}\r"),
    (12, lambda a: f"{{'loss': '{a.value(1, 3):.4f}', 'grad_norm': '{a.value(0.3, 2):.4f}', 'learning_rate': '{a.value(1e-5, 9e-5):.4g}', 'num_tokens': '{a.value(1e6, 9e9):.4g}', 'epoch': '{a.step / 5000:.2f}'}}"),
    (10, lambda a: f"[{a.stamp()},{a.millis:03d}] [INFO] [logging.py:107:log_dist] [Rank 0] time (ms) | fwd_microstep: {a.value(200, 300):.2f} | bwd_microstep: {a.value(400, 600):.2f} | step_microstep: {a.value(1, 90):.2f}"),
    (6, lambda a: f"DEBUG:megatron.core.dist_checkpointing.strategies.async_utils:rank: {a.rank}, takes {a.value(0, 2):.5f} to finish D2H and start the writer, pid {a.dice.randint(100, 9999)}"),
    (6, lambda a: f"{a.stamp('%m/%d/%Y %H:%M:%S')} - DEBUG - data.collator - [rank {a.rank}] batch {a.step}: seqs={a.dice.randint(1, 8)} tokens={a.dice.randint(1000, 16_000)} pad_ratio={a.value(0, 1):.3f}"),
    (4, lambda a: f"Map (num_proc=16): {a.step % 100:3d}%|{'█' * (a.step % 100 // 10):<10}| {a.step % 100 * 8286}/828624 [00:{a.dice.randint(10, 59)}<00:{a.dice.randint(10, 59)}, {a.value(20_000, 40_000):.2f} examples/s]"),
    (4, lambda a: f"    optimizer-unscale-and-check-inf ................: ({a.value(1, 3):.2f}, {a.value(3, 5):.2f})"),
    (4, lambda a: f"{a.stamp()} - httpx - INFO - HTTP Request: HEAD https://hub.example/{a.word()}/resolve/main/config.json \"HTTP/1.1 200 OK\""),
    (4, lambda a: a.prose(4, 20)),
)  # fmt: skip

MIXTURES: dict[str, tuple[tuple[int, Line], ...]] = {
    "torch": TORCH,
    "ray": RAY,
    "jax": JAX,
    "vision": VISION,
    "rlhf": RLHF,
    "speech": SPEECH,
    "science": SCIENCE,
    "robots": ROBOTS,
    "asia": ASIA,
    "services": SERVICES,
    "prose": PROSE,
    "cluster": CLUSTER,
    "finetune": FINETUNE,
}
LAYOUTS = ("plain", "cri", "docker", "ranks")


def bodies(mixture: str, rank: int, seed: int, count: int = DISTINCT) -> list[str]:
    """So many lines of one rank."""
    dice = random.Random(f"{mixture} {rank} {seed}")
    shares, lines = zip(*MIXTURES[mixture], strict=True)
    chosen = dice.choices(lines, shares, k=count)
    return [line(At(dice, rank, 1000 + n // 4, START + n / LINES_A_SECOND)) for n, line in enumerate(chosen)]


def _kept(layout: str, lines: list[str], size: int) -> Iterator[bytes]:
    written = number = 0
    while written < size:
        text = lines[number % len(lines)]
        nanos = START * 10**9 + number * (10**9 // LINES_A_SECOND)
        time = datetime.fromtimestamp(nanos // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{nanos % 10**9:09d}Z"
        if layout == "cri":
            kept = f"{time} stdout F {text}\n"
            if number % CUT == 5:
                kept = f"{time} stdout P {text[:40]}\n{time} stdout F {text[40:]}\n"
        elif layout == "docker":
            kept = (
                json.dumps(
                    {"log": text + "\n", "stream": "stdout", "time": time}, separators=(",", ":"), ensure_ascii=False
                )
                + "\n"
            )
        else:
            kept = f"{text}\n"
        data = kept.encode()
        yield data
        written += len(data)
        number += 1


def write(folder: Path, mixture: str, layout: str, size: int, seed: int, files: int = 3) -> None:
    """Logs of about so many bytes in all."""
    for rank in range(files):
        if layout == "ranks":
            place = folder / "none_run" / "attempt_0" / str(rank) / "stdout.log"
        elif layout == "docker":
            name = f"{rank:064x}"
            place = folder / "containers" / name / f"{name}-json.log"
        elif layout == "cri":
            place = folder / f"ml_train-{rank}_{rank:08x}-0000-4000-8000-000000000000" / "trainer" / "0.log"
        else:
            place = folder / f"worker-{rank}.log"
        place.parent.mkdir(parents=True, exist_ok=True)
        with open(place, "wb") as file:
            file.writelines(_kept(layout, bodies(mixture, rank, seed), size // files))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mixture", choices=MIXTURES, default="torch")
    parser.add_argument("--layout", choices=LAYOUTS, default="cri")
    parser.add_argument("--megabytes", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    write(chosen.folder, chosen.mixture, chosen.layout, chosen.megabytes * 10**6, chosen.seed)


if __name__ == "__main__":
    main()
