"""Redaction: secrets go, evidence stays, and time is linear."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracecore.signals import redaction
from tracecore.signals.redaction import MASK, is_secret_name, redacted, redacted_command, redacted_record

SECRET = "Zk3vQ9x7Lm2Rt5Yw8Bn4"
#: Pieces of which shapes are made, so that no whole one stands in this file.
JWT = ".".join(("eyJhbGciOiJIUzI1NiJ9", "eyJzdWIiOiIxMjM0In0", "c2lnbmF0dXJl"))


@pytest.mark.parametrize(
    "text",
    [
        f"redis://:{SECRET}@cache:6379/0",
        f"https://{SECRET}@git.example/x.git",
        f"Authorization: Basic {SECRET}=",
        f"Set-Cookie: session={SECRET}; Path=/",
        f"NGC_API_KEY={SECRET}",
        f"os.environ['HF_TOKEN'] = '{SECRET}'",
        f'{{"wandb": {{"api_key": "{SECRET}"}}}}',
        f'{{\\"password\\": \\"{SECRET}\\"}}',
        f"DefaultEndpointsProtocol=https;AccountKey={SECRET};x=1",
        f"train.py --hf-token {SECRET} --lr 3e-4",
        f"PASSWORD: {SECRET}",
        f"password: {SECRET}",
        "nvapi-" + SECRET * 2,
        "sk_live_" + SECRET,
        "npm_" + SECRET * 2,
        "dapi" + "0123456789abcdef" * 2,
        "https://discord.com/api/webhooks/123/" + SECRET,
        JWT,
    ],
)
def test_a_secret_goes(text: str) -> None:
    clean = redacted(f"ValueError: cannot reach it with {text}")
    assert SECRET not in clean
    assert "sdWIiOiI" not in clean
    assert MASK in clean
    assert clean.startswith("ValueError: cannot reach it with ")


@pytest.mark.parametrize("name", ["PRIVATE KEY", "RSA PRIVATE KEY", "OPENSSH PRIVATE KEY", "PGP PRIVATE KEY BLOCK"])
def test_a_private_key_goes_with_all_of_its_lines(name: str) -> None:
    body = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcw\n" * 3
    key = f"-----BEGIN {name}-----\n{body}-----END {name}-----"
    for text in (key, key.replace("\n", "\\n"), key.partition("\n")[2], f"x {key} y\nRuntimeError: boom"):
        clean = redacted(text)
        assert "MIIE" not in clean
    assert clean.endswith(" y\nRuntimeError: boom")


@pytest.mark.parametrize(
    "text",
    [
        "commit 9fceb02d0ae598e95dc970b74767f19372d61af8 on rank 3f2a",
        "NCCL INFO comm 0x5591a3f0 rank 2 nranks 8 cudaDev 2 busId 3b000 commId 0x9d3f6c2be1a4c7f0 - Init COMPLETE",
        "GPU-5d9f2c1e-8f7a-4b3c-9d2e-1a2b3c4d5e6f fell off the bus",
        "/mnt/secrets/token/model-00001-of-00008.safetensors: No such file",
        "token=/var/run/secrets/kubernetes.io/serviceaccount/token",
        "SyntaxError: invalid token: unexpected",
        "json: unexpected token: NULLVALUE at line 3",
        "basic configuration, token classification, bearer certificates",
        "tcp://10.0.0.1:29500 and s3://bucket/path@v2 and nvcr.io/nvidia/pytorch@sha256:0123456789abcdef0123",
        "git clone ssh://git@github.com/x/y",
        "eos_token=<|endoftext|> pad_token_id=50256 bos_token='<s>'",
        "c = Client(address, authkey=process.current_process().authkey)",
        'api_key = os.environ["WANDB_API_KEY"]',
        "TOKENIZERS_PARALLELISM=false",
        "KeyError: 'model.layers.0.self_attn.q_proj.weight'",
        "[default0]: max_tokens=4096000 tokens: 123456789",
        "pk-gpu-cluster-node-000123 is not ready; disk-0123456789abcdefghij failed",
        "sk-learn-compatible-estimators-and-more are imported",
        "hf_transformers_modelconfiguration",
        "DistBackendError: NCCL error in: ../torch/csrc/ProcessGroupNCCL.cpp:1970, unhandled system error",
    ],
)
def test_evidence_stays(text: str) -> None:
    assert redacted(text) is text


def test_nothing_is_taken_out_of_real_failures(incidents: Path) -> None:
    lines = (
        (path.name, line)
        for path in sorted(incidents.rglob("*.log"))
        for line in path.read_text("utf-8", "surrogateescape").splitlines()
    )
    assert [(name, line) for name, line in lines if redacted(line) is not line] == []


@pytest.mark.parametrize(
    "piece", ["password=", "token: ", "https://a:", "eyJ", "sk-", "Bearer a1B2", "AKIA", "--api-key ", "-----BEGIN "]
)
def test_time_is_linear_in_the_length_of_a_line(piece: str) -> None:
    def seconds(size: int) -> float:
        text = (piece * size)[: size * 8]
        best = 9.0
        for _ in range(3):
            begin = time.process_time()
            redacted(text)
            best = min(best, time.process_time() - begin)
        return best

    assert seconds(80_000) < 3 * 8 * seconds(10_000) + 0.05


@given(st.one_of(st.text(max_size=300), st.text(st.characters(), max_size=60).map(lambda text: f"\ud800 key={text}")))
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    once = redacted(text)
    assert redacted(once) == once


def test_a_record_is_copied_only_where_it_changes() -> None:
    plain = {"resource": {"attributes": {}}, "log": {"body": "step 1", "attributes": {"a": "b"}}, "source": None}
    assert redacted_record(plain) is plain  # type: ignore[arg-type]
    told = {**plain, "log": {"body": f"HF_TOKEN={SECRET}", "attributes": {"exception.message": f"api_key={SECRET}"}}}
    clean = redacted_record(told)  # type: ignore[arg-type]
    assert SECRET not in str(clean)
    assert SECRET in str(told)


def test_commands_and_names() -> None:
    command = ["train.py", "--api-key", SECRET, f"--token={SECRET}", "--lr", "3e-4", "--tokenizer", "gpt2-tokenizer"]
    clean = redacted_command(command)
    assert SECRET not in " ".join(clean)
    assert clean[4:] == command[4:]
    assert is_secret_name("WANDB_API_KEY")
    assert is_secret_name("SSH_KEY")
    assert not is_secret_name("TOKENIZERS_PARALLELISM")
    assert not is_secret_name("MONKEY")


def test_a_line_known_to_be_clean_is_still_hidden_inside_a_key() -> None:
    line = "pad_token: 12 of 13\n"
    assert redacted(line) == line
    key = f"-----BEGIN PRIVATE KEY-----\n{line}-----END PRIVATE KEY-----\n"
    assert "12 of 13" not in redacted(key)
    assert redacted(line) == line


def test_only_so_many_clean_lines_are_remembered_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "MAX_CLEAN", 8)
    redaction._CLEAN.clear()
    for number in range(50):
        redacted(f"pad_token: {number}\npassword={number}hunter2\npad_token: {'x ' * redaction.MAX_CLEAN_LINE}\n")
        assert len(redaction._CLEAN) <= 8
    assert redaction._CLEAN
    assert not any(b"hunter2" in line or len(line) > redaction.MAX_CLEAN_LINE for line in redaction._CLEAN)
