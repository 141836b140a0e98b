"""`tracecore collect`: what goes into the archive, what is missing, and that secrets stay at home."""

from __future__ import annotations

import json
import os
import stat
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tracecore.cli.main import root
from tracecore.diagnose.collection import Item, Request, collect, items
from tracecore.diagnose.offline import diagnose
from tracecore.signals.redaction import MASK, Redactor

INCIDENTS = Path(__file__).resolve().parents[2] / "examples" / "incidents"


def members(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as tar:
        return {info.name: tar.extractfile(info).read() for info in tar}  # type: ignore[union-attr]


def redacted(text: str) -> str:
    redactor = Redactor()
    return b"".join(redactor.line(line) for line in text.encode().splitlines(keepends=True)).decode()


SECRETS = [
    "export WANDB_API_KEY={}",
    "HF_TOKEN={}",
    "aws_secret_access_key = {}",
    '"password": "{}",',
    "connecting to postgres://user:{}@db.example/x",
    "Authorization: Bearer {}",
    "python train.py --api-key {} --lr 3e-4",
    "https://bucket.s3.amazonaws.com/x?X-Amz-Algorithm=AWS4&X-Amz-Signature={}",
    "MY_CLIENT_SECRET: {}",
]


@pytest.mark.parametrize("line", SECRETS)
def test_a_secret_goes_and_its_line_stays_readable(line: str) -> None:
    secret = "Zk3vQ9x7Lm2Rt5Yw8Bn4"
    clean = redacted(line.format(secret) + "\n")
    assert secret not in clean
    assert MASK in clean
    assert clean.split()[0].split(MASK)[0] in line


@pytest.mark.parametrize(
    "token",
    [
        "AKIAIOSFODNN7EXAMPLE",
        "hf_" + "a1B2" * 8,
        "ghp_" + "a1B2" * 9,
        "github_pat_" + "a1B2" * 8,
        "glpat-" + "a1B2" * 5,
        "sk-proj-" + "a1B2" * 8,
        "xoxb-" + "1234567890-abc",
        "AIza" + "a1B2" * 9,
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
    ],
)
def test_tokens_are_known_by_their_shape(token: str) -> None:
    assert token not in redacted(f"step 3 got {token} from somewhere\n")


@pytest.mark.parametrize(
    "line",
    [
        "eos_token=<|endoftext|> pad_token_id=50256 max_token=4096000",
        "tokens: 123456789 per second, 4.5e6 token/s",
        "[2026-11-15 02:21:34] rank 1 | step 0 | loss 2.0000",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 300.00 GiB.",
        "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.",
        "store = TCPStore(host, port, world_size) at localhost<47900>",
        "see https://pytorch.org/docs/stable/elastic/errors.html",
        "token: none password=null secret: false",
    ],
)
def test_what_is_no_secret_stays(line: str) -> None:
    assert redacted(line + "\n") == line + "\n"


def test_a_private_key_goes_whole() -> None:
    text = "a\n-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\nAAAA\n-----END OPENSSH PRIVATE KEY-----\nz\n"
    clean = redacted(text)
    assert "b3BlbnNzaC1rZXk" not in clean
    assert clean.startswith("a\n")
    assert clean.endswith("\nz\n")
    assert clean.count("\n") == text.count("\n")


def test_the_environment_of_a_pod_is_masked_by_name() -> None:
    pod = {
        "spec": {
            "containers": [{"env": [{"name": "WANDB_API_KEY", "value": "plainword"}, {"name": "RANK", "value": "3"}]}]
        }
    }
    redactor = Redactor()
    clean = json.loads(redactor.document(json.dumps(pod).encode()))
    assert clean["spec"]["containers"][0]["env"] == [
        {"name": "WANDB_API_KEY", "value": MASK},
        {"name": "RANK", "value": "3"},
    ]
    assert redactor.count == 1


def test_binary_files_keep_their_length() -> None:
    redactor = Redactor(keep_length=True)
    raw = b"\x80\x02}q\x00X\x24\x00\x00\x00" + b"hf_" + b"a1B2" * 8 + b"q\x01.\n"
    clean = redactor.line(raw)
    assert len(clean) == len(raw)
    assert b"a1B2" not in clean


@given(st.binary(max_size=300))
def test_no_line_breaks_the_redactor_and_line_ends_stay(raw: bytes) -> None:
    for keep in (False, True):
        redactor = Redactor(keep_length=keep)
        clean = b"".join(redactor.line(line) for line in raw.splitlines(keepends=True))
        assert clean.count(b"\n") == raw.count(b"\n")
        if keep:
            assert len(clean) == len(raw)


def test_redacting_twice_changes_nothing_more() -> None:
    for line in SECRETS:
        once = redacted(line.format("Zk3vQ9x7Lm2Rt5Yw8Bn4") + "\n")
        assert redacted(once) == once


def test_a_collected_bundle_gives_the_same_diagnosis(tmp_path: Path) -> None:
    source = INCIDENTS / "nccl_rank_exception"
    output = tmp_path / "bundle.tar.gz"
    collect([Item(name="logs", what="logs", files=(str(source),))], output)
    plain, packed = diagnose([source]).document(), diagnose([output]).document()
    assert packed["incidents"][0]["root_cause"]["pattern"] == plain["incidents"][0]["root_cause"]["pattern"]
    assert packed["incidents"][0]["suspects"] == plain["incidents"][0]["suspects"]


def test_what_is_missing_is_listed_with_its_reason(tmp_path: Path) -> None:
    wanted = [
        Item(name="a.txt", what="a program that is not there", commands=(("no-such-program-at-all",),)),
        Item(name="b.txt", what="one that fails", commands=(("sh", "-c", "echo no such job >&2; exit 3"),)),
        Item(name="c.txt", what="one that hangs", commands=(("sleep", "30"),)),
        Item(name="d", what="files", files=(str(tmp_path / "nothing-*"),)),
        Item(name="e.txt", what="the second way works", commands=(("no-such-program-at-all",), ("echo", "hello"))),
    ]
    results = collect(wanted, tmp_path / "out.tar.gz", timeout=0.5)
    reasons = {got.name: got.missing for got in results}
    assert reasons["a.txt"] == "no-such-program-at-all is not installed"
    assert reasons["b.txt"].endswith("ended with status 3: no such job")
    assert "took longer than" in reasons["c.txt"]
    assert reasons["d"].startswith("nothing at")
    held = members(tmp_path / "out.tar.gz")
    assert held["e.txt"] == b"hello\n"
    manifest = json.loads(held["tracecore-manifest.json"])
    assert {entry["name"] for entry in manifest["missing"]} == {"a.txt", "b.txt", "c.txt", "d"}


def test_the_manifest_is_no_evidence(tmp_path: Path) -> None:
    says = ("sh", "-c", "echo 'Connection refused: CUDA out of memory' >&2; exit 1")
    collect([Item(name="x", what="x", commands=(says,))], tmp_path / "out.tar.gz")
    found = diagnose([tmp_path / "out.tar.gz"])
    assert found.facts == []


def test_links_are_not_followed_and_the_archive_is_private(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "rank0.log").write_text("hello\n")
    (logs / "passwd").symlink_to("/etc/passwd")
    output = tmp_path / "out.tar.gz"
    collect([Item(name="logs", what="logs", files=(str(logs),))], output)
    assert set(members(output)) == {"logs/logs/rank0.log", "tracecore-manifest.json"}
    assert stat.S_IMODE(os.stat(output).st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []


def test_dry_run_says_what_it_would_do_and_does_nothing(tmp_path: Path) -> None:
    output = tmp_path / "out.tar.gz"
    result = CliRunner().invoke(root, ["collect", "--dry-run", "--pod", "ml/train-0", "--output", str(output)])
    assert result.exit_code == 0
    assert "kubectl logs train-0 -n ml" in result.stdout
    assert not output.exists()


def test_dumps_are_looked_for_where_the_job_was_told_to_put_them() -> None:
    found = items(Request(), {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/scratch/job7/nccl_trace_rank_"})
    dumps = next(item for item in found if item.name == "flight_recorder")
    assert "/scratch/job7/nccl_trace_rank_*" in dumps.files


@pytest.mark.parametrize(
    "arguments",
    [["--pod", "a", "--job", "b"], ["--pod", "--all"], ["--since", "yesterday"], ["--logs", "/no/such/place"]],
)
def test_bad_usage(arguments: list[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(root, ["collect", *arguments, "--output", str(tmp_path / "x.tar.gz")])
    assert result.exit_code == 2
    assert not (tmp_path / "x.tar.gz").exists()
