"""What stands in deploy/."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"

YAMLLINT = """
extends: default
rules:
  braces: {max-spaces-inside: 1}
  comments: {min-spaces-from-content: 1}
  document-start: disable
  line-length: {max: 130}
"""


def documents(path: Path) -> list[Any]:
    """The YAML documents in a file."""
    return list(yaml.safe_load_all(path.read_text("utf-8")))


def run(*command: str | Path) -> str:
    """A program's output; what it complains about fails the test."""
    ended = subprocess.run([*map(str, command)], capture_output=True, text=True, cwd=ROOT, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def built() -> list[Any]:
    """What `kubectl apply -k deploy/kubernetes` would send; without kubectl, all but name suffixes."""
    folder = DEPLOY / "kubernetes"
    if shutil.which("kubectl"):
        return list(yaml.safe_load_all(run("kubectl", "kustomize", folder)))
    (kustomization,) = documents(folder / "kustomization.yaml")
    made = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": each["name"]},
            "data": {Path(name).name: (folder / name).read_text("utf-8") for name in each["files"]},
        }
        for each in kustomization["configMapGenerator"]
    ]
    return made + [each for name in kustomization["resources"] for each in documents(folder / name)]
