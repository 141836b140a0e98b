"""Builds the real kube-apiserver from the Go module registry, once, into a cache outside the repository."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TextIO

VERSION = "1.34.4"
MAIN = """package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() { os.Exit(cli.Run(app.NewAPIServerCommand())) }
"""


def cache() -> Path:
    """Where built programs of other people are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tracecore"


def apiserver() -> Path | str:
    """The program, or the reason there is none."""
    if not shutil.which("go"):
        return "Go is not installed, so kube-apiserver cannot be built"
    place = cache() / f"kube-apiserver-{VERSION}"
    program = place / "kube-apiserver"
    if program.exists():
        return program
    place.mkdir(parents=True, exist_ok=True)
    log = place / "build.log"
    with log.open("w") as out:
        got = subprocess.run(
            ["go", "mod", "download", "-json", f"k8s.io/kubernetes@v{VERSION}"],
            stdout=subprocess.PIPE, stderr=out, cwd=place, text=True, check=False,
        )  # fmt: skip
        found = re.search(r'"GoMod": "(.+)"', got.stdout)
        if not found:
            return f"the module k8s.io/kubernetes could not be had; see {log}"
        (place / "go.mod").write_text(_module(Path(found.group(1)).read_text()))
        (place / "main.go").write_text(MAIN)
        stamp = "-X k8s.io/component-base/version.gitVersion=v" + VERSION
        minor = "-X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=34"
        if _build(place, program, f"-s -w {stamp} {minor}", out):
            return f"kube-apiserver did not build; see {log}"
    return program


#: The newest version of the Collector's receiver that is a module of its own, and the Collector it belongs to.
RECEIVER = "0.111.0"
RECEIVER_MODULE = f"""module k8sobjects

go 1.22.0

require (
	github.com/open-telemetry/opentelemetry-collector-contrib/receiver/k8sobjectsreceiver v{RECEIVER}
	go.opentelemetry.io/collector/component v{RECEIVER}
	go.opentelemetry.io/collector/confmap v1.17.0
	go.opentelemetry.io/collector/consumer v{RECEIVER}
	go.opentelemetry.io/collector/pdata v1.17.0
	go.opentelemetry.io/collector/receiver v{RECEIVER}
)
"""


def receiver() -> Path | str:
    """A program around the Collector's k8sobjects receiver, or the reason there is none."""
    if not shutil.which("go"):
        return "Go is not installed, so the Collector's receiver cannot be built"
    source = Path(__file__).with_name("receiver.go")
    place = cache() / f"k8sobjectsreceiver-{RECEIVER}-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}"
    program = place / "k8sobjects"
    if program.exists():
        return program
    place.mkdir(parents=True, exist_ok=True)
    (place / "go.mod").write_text(RECEIVER_MODULE)
    shutil.copy(source, place / "main.go")
    with (place / "build.log").open("w") as out:
        if _build(place, program, "-s -w", out):
            return f"the Collector's receiver did not build; see {place / 'build.log'}"
    return program


def _build(place: Path, program: Path, flags: str, out: TextIO) -> int:
    """Build one package at a time and politely: such a build wants some gigabytes and many minutes of a core."""
    command = ["go", "build", "-p", "1", "-mod=mod", "-trimpath", f"-ldflags={flags}", "-o", str(program), "."]
    command = [*(["nice", "-n", "15"] if shutil.which("nice") else []), *command]
    environment = {**os.environ, "CGO_ENABLED": "0"}
    return subprocess.run(command, stdout=out, stderr=out, cwd=place, env=environment, check=False).returncode


def _module(theirs: str) -> str:
    """A module that builds their program: what they require, and their staging folders as they were published."""
    staged = re.findall(r"^\s*(k8s\.io/\S+) => \./staging/", theirs, re.MULTILINE)
    published = "v0." + VERSION.partition(".")[2]
    needed = re.sub(r"^module .*", "module apiserver", theirs, count=1, flags=re.MULTILINE)
    needed = re.sub(r"^\s*\S+ => \./staging/.*\n", "", needed, flags=re.MULTILINE)
    lines = [f"replace {name} => {name} {published}" for name in staged]
    return needed + f"\nrequire k8s.io/kubernetes v{VERSION}\n\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(apiserver())
    print(receiver())
