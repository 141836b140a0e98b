"""Tracebacks as processes print them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracecore.facts.tracebacks import MESSAGE_CHARS, Frame, loader_worker, parse, user_code

PLAIN = """Traceback (most recent call last):
  File "/job/train.py", line 40, in <module>
    main()
  File "/job/train.py", line 21, in main
    loss = model(batch)
           ^^^^^^^^^^^^
  File "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1751, in _call_impl
    return forward_call(*args)
ValueError: shapes do not fit
"""

CHAINED = """Traceback (most recent call last):
  File "/job/data.py", line 3, in read
    open(path)
FileNotFoundError: [Errno 2] No such file or directory: 'a'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/job/train.py", line 9, in <module>
    read()
pkg.errors.ShardError: shard a is gone
"""

CARRIED = """Traceback (most recent call last):
  File "/job/train.py", line 5, in <module>
    for batch in loader:
  File "/x/site-packages/torch/_utils.py", line 733, in reraise
    raise exception
KeyError: Caught KeyError in DataLoader worker process 3.
Original Traceback (most recent call last):
  File "/x/site-packages/torch/utils/data/_utils/worker.py", line 349, in _worker_loop
    data = fetcher.fetch(index)
  File "/job/dataset.py", line 77, in __getitem__
    return self.rows[i]
KeyError: 'label'
"""

REMOTE = '''multiprocessing.pool.RemoteTraceback:
"""
Traceback (most recent call last):
  File "/job/prep.py", line 4, in work
    1 / 0
ZeroDivisionError: division by zero
"""

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/job/main.py", line 8, in <module>
    pool.map(work, items)
ZeroDivisionError: division by zero
'''

GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "/job/main.py", line 2, in <module>
  |     raise ExceptionGroup("two", errors)
  | ExceptionGroup: two (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/job/a.py", line 11, in a
    |     raise ValueError("one")
    | ValueError: one
    +---------------- 2 ----------------
    | TypeError: other
    +------------------------------------
"""

SYNTAX = """Traceback (most recent call last):
  File "/job/train.py", line 1, in <module>
    import model
  File "/job/model.py", line 12
    def forward(self
               ^
SyntaxError: '(' was never closed
"""

TABLE = """  traceback : Traceback (most recent call last):
    File "/x/lib/python3.11/site-packages/torch/distributed/elastic/record.py", line 346, in wrapper
      return f(*args, **kwargs)
    File "/job/train.py", line 12, in main
      raise ValueError("x")
  ValueError: x
"""


@pytest.mark.parametrize(
    ("text", "kind", "message", "frame", "root"),
    [
        (PLAIN, "ValueError", "shapes do not fit", Frame("/job/train.py", 21, "main"), None),
        (
            CHAINED,
            "pkg.errors.ShardError",
            "shard a is gone",
            Frame("/job/train.py", 9, "<module>"),
            ("FileNotFoundError", "[Errno 2] No such file or directory: 'a'"),
        ),
        (
            CARRIED,
            "KeyError",
            "Caught KeyError in DataLoader worker process 3.",
            Frame("/job/dataset.py", 77, "__getitem__"),
            ("KeyError", "'label'"),
        ),
        (
            REMOTE,
            "ZeroDivisionError",
            "division by zero",
            Frame("/job/main.py", 8, "<module>"),
            ("ZeroDivisionError", "division by zero"),
        ),
        (GROUP, "ExceptionGroup", "two (2 sub-exceptions)", Frame("/job/a.py", 11, "a"), ("ValueError", "one")),
        (SYNTAX, "SyntaxError", "'(' was never closed", Frame("/job/model.py", 12, None), None),
        (TABLE, "ValueError", "x", Frame("/job/train.py", 12, "main"), None),
        ("Traceback (most recent call last):\nKeyboardInterrupt", "KeyboardInterrupt", "", None, None),
    ],
    ids=["plain", "chained", "loader", "remote", "group", "syntax", "table", "bare"],
)
@pytest.mark.parametrize("prefix", ["", "[rank3]: ", "(Worker pid=12, ip=10.0.0.1) "])
def test_structure(
    text: str, kind: str, message: str, frame: Frame | None, root: tuple[str, str] | None, prefix: str
) -> None:
    found = parse("\n".join(prefix + line for line in text.splitlines()))
    assert found is not None
    assert (found.type, found.message, found.frame) == (kind, message, frame)
    assert (found.root_type, found.root_message) == (root or (None, None))


@pytest.mark.parametrize("prefix", ["", "[rank3]: ", "[default0]:"])
def test_a_lone_exception_line(prefix: str) -> None:
    found = parse(prefix + "torch.OutOfMemoryError: CUDA out of memory.")
    assert found is not None
    assert (found.type, found.message, found.frame) == ("torch.OutOfMemoryError", "CUDA out of memory.", None)


def test_colours_and_what_follows_are_left_out() -> None:
    text = '\x1b[35mTraceback (most recent call last):\x1b[0m\n  File \x1b[35m"/job/a.py"\x1b[0m, line 4, in f\n'
    found = parse(text + "\x1b[1mRuntimeError\x1b[0m: no\nWARNING:root:going on\n")
    assert found is not None
    assert (found.type, found.message, found.frame) == ("RuntimeError", "no", Frame("/job/a.py", 4, "f"))


def test_messages_of_several_lines_are_kept_and_bounded() -> None:
    head = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    f()\n'
    found = parse(head + "RuntimeError: first\nsecond\n\nnot part of it")
    assert found is not None
    assert found.message == "first\nsecond"
    long = parse(head + "RuntimeError: " + "x" * 10**6)
    assert long is None or len(long.message) <= MESSAGE_CHARS


def test_recursion_is_bounded() -> None:
    deep = "Traceback (most recent call last):\n" + '  File "a.py", line 1, in f\n    f()\n' * 100_000
    found = parse(deep + "RecursionError: maximum recursion depth exceeded\n")
    # The header is out of reach, but the recipe has the type; what matters is that it ends, and soon.
    assert found is None or found.type == "RecursionError"


def test_unrelated_text_is_no_traceback() -> None:
    assert parse("step 3: loss 2.5\nstep 4: loss 2.4\n") is None
    assert parse("") is None
    assert parse("Traceback (most recent call last):\n") is None


@pytest.mark.parametrize(
    ("file", "mine"),
    [
        ("train.py", True),
        ("/home/a/project/torch_model/train.py", True),
        ("/opt/project/train.py", True),
        ("/opt/pytorch/torch/nn/functional.py", False),
        ("/opt/transformers/src/transformers/trainer.py", False),
        ("/usr/lib/python3/dist-packages/x.py", False),
        ("/opt/conda/lib/python3.11/runpy.py", False),
        ("C:\\py\\Lib\\site-packages\\torch\\x.py", False),
        ("<frozen importlib._bootstrap>", False),
        ("/usr/local/bin/torchrun", False),
        ("cupy_backends/cuda/api/driver.pyx", False),
        ("<stdin>", True),
    ],
)
def test_user_code(file: str, mine: bool) -> None:
    assert user_code(file) is mine


def test_the_worker_of_a_loader() -> None:
    assert loader_worker("Caught KeyError in DataLoader worker process 3.") == 3
    assert loader_worker("worker process 3") is None


@given(
    st.text(alphabet=st.sampled_from(list('Traceback (mostrecentcall):\n +|-File",line1in E0[]\x1b"')), max_size=400)
)
def test_nothing_makes_it_raise(text: str) -> None:
    found = parse("Traceback (most recent call last):\n" + text)
    assert found is None or found.type


@pytest.mark.parametrize(
    ("log", "kind", "root"),
    [
        ("dl_exc/out.log", "FileNotFoundError", "FileNotFoundError"),
        ("dl_killed/out.log", "RuntimeError", "ConnectionResetError"),
        ("oom/out.log", "torch.OutOfMemoryError", None),
        ("device_assert/out.log", "torch.AcceleratorError", None),
        ("import_error/out.log", "ModuleNotFoundError", None),
    ],
)
def test_recorded_failures(incidents: Path, log: str, kind: str, root: str | None) -> None:
    found = parse((incidents / log).read_text(errors="replace"))
    assert found is not None
    assert (found.type, found.root_type) == (kind, root)
    assert found.frame is not None
    assert found.frame.file.startswith("/workspace/")


def test_what_ray_carries_from_task_to_task() -> None:
    found = parse(
        """Traceback (most recent call last):
  File "/srv/main.py", line 9, in <module>
    ray.get(ref)
ray.exceptions.RayTaskError(KeyError): ray::train() (pid=1, ip=10.0.0.1)
  File "/srv/main.py", line 5, in train
    ray.get(inner)
ray.exceptions.RayTaskError(KeyError): ray::load() (pid=2, ip=10.0.0.2)
  File "/srv/load.py", line 3, in load
    return row["text"]
KeyError: 'text'
"""
    )
    assert found is not None
    assert found.type == "ray.exceptions.RayTaskError(KeyError)"
    assert (found.root_type, found.root_message) == ("KeyError", "'text'")
    assert found.frame == Frame("/srv/load.py", 3, "load")


def test_the_rank_that_an_exception_is_carried_over_from() -> None:
    found = parse(CARRIED)
    assert found is not None
    assert (found.type, found.root_type, found.root_message) == (
        "torch.api.CheckpointException",
        "TypeError",
        "no pickle",
    )
    assert found.origin == 1
    assert found.frame is not None
    assert found.frame.line == 17


CARRIED = """Traceback (most recent call last):
  File "/app/train.py", line 19, in save
    dcp.save(state)
torch.api.CheckpointException: CheckpointException ranks:dict_keys([1])
Traceback (most recent call last): (RANK 1)
  File "/usr/lib/python3/site-packages/torch/serialization.py", line 1254, in _save
    pickler.dump(obj)
  File "/app/train.py", line 17, in __reduce__
    raise TypeError("no pickle")
TypeError: no pickle
"""


def test_a_carried_exception_without_its_carrier_still_names_its_rank() -> None:
    parsed = parse("Traceback (most recent call last): (RANK 5)\nOSError: [Errno 122] Disk quota exceeded: '/c/__5_0'")
    assert parsed is not None
    assert (parsed.type, parsed.origin) == ("OSError", 5)
