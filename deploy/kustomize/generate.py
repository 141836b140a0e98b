"""Writes the Kustomize base from the chart's default rendering, and what the chart carries of its neighbours.

    python deploy/kustomize/generate.py HELM

HELM is the program. The folders `deploy/alerts` and `deploy/dashboards` are copied into the chart, since a chart holds
no links to the outside. Tests check that what is committed is what this writes.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

DEPLOY = Path(__file__).resolve().parents[1]
CHART = DEPLOY / "helm" / "tracecore"
BASE = DEPLOY / "kustomize" / "base"
#: Folders that the chart carries a copy of: where from, which files, where to.
COPIES = (
    (DEPLOY / "alerts", "*.yaml", CHART / "files" / "alerts"),
    (DEPLOY / "dashboards", "*.json", CHART / "files" / "dashboards"),
)
#: A Kubernetes that the chart accepts, whatever the program was built for.
KUBERNETES = "1.34.0"
NAMESPACE = """apiVersion: v1
kind: Namespace
metadata:
  name: tracecore
  labels:
    # Agents mount directories of their node, which only this level allows.
    pod-security.kubernetes.io/enforce: privileged
"""
KUSTOMIZATION = """# Written by generate.py from the chart's defaults; changes belong into an overlay or the chart.
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
namespace: tracecore
resources:
{resources}
# A changed configuration has another name, so that pods are replaced.
configMapGenerator:
{maps}
"""
_HELM_ONLY = re.compile(r"^ *(?:helm\.sh/chart|app\.kubernetes\.io/managed-by|checksum/config): .*\n", re.MULTILINE)
_CHECKSUM = re.compile(r"^ *# A changed configuration is a new pod\.\n", re.MULTILINE)


def rendered(helm: Path | str) -> str:
    """The chart's defaults."""
    command = [str(helm), "template", "tracecore", str(CHART), "--namespace", "tracecore", "--kube-version", KUBERNETES]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def base(text: str) -> dict[str, str]:
    """The files of the base, by name."""
    objects: dict[str, list[str]] = {}
    made: dict[str, str] = {}
    maps: list[str] = []
    for document in re.split(r"^---\n", text, flags=re.MULTILINE):
        source = re.match(r"# Source: tracecore/templates/(\S+)\n", document)
        if source is None:
            continue
        body = document[source.end() :].strip("\n") + "\n"
        if "\nkind: ConfigMap\n" in body:
            name, file, config = _config(body)
            made[f"config/{file}"] = config
            maps.append(f"  - name: {name}\n    files: [config/{file}]")
        else:
            objects.setdefault(source.group(1), []).append(_CHECKSUM.sub("", _HELM_ONLY.sub("", body)))
    made.update({name: "---\n".join(bodies) for name, bodies in objects.items()})
    made["namespace.yaml"] = NAMESPACE
    resources = "\n".join(f"  - {name}" for name in sorted({"namespace.yaml", *objects}))
    made["kustomization.yaml"] = KUSTOMIZATION.format(resources=resources, maps="\n".join(maps))
    return made


def _config(body: str) -> tuple[str, str, str]:
    """Name of the map, name of its only file, and the file."""
    name = re.search(r"^  name: (\S+)$", body, re.MULTILINE)
    head, _, text = body.partition(": |\n")
    assert name is not None
    lines = [line.removeprefix("    ") for line in text.splitlines()]
    return name.group(1), head.splitlines()[-1].strip(), "\n".join(lines) + "\n"


def main(helm: str) -> None:
    for source, files, target in COPIES:
        shutil.rmtree(target, ignore_errors=True)
        if source.is_dir():
            target.mkdir(parents=True)
            for path in sorted(source.glob(files)):
                shutil.copy(path, target / path.name)
    made = base(rendered(helm))
    shutil.rmtree(BASE, ignore_errors=True)
    for name, text in made.items():
        path = BASE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main(sys.argv[1])
