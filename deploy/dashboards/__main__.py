"""`python -m deploy.dashboards [--check]`: write deploy/grafana/seam.json, or say whether it is so."""

import sys
from pathlib import Path

from deploy.dashboards.seam import generated

FILE = Path(__file__).parents[1] / "grafana" / "seam.json"


def main(arguments: list[str]) -> int:
    """Exit code: 0 done, 1 the file is not what the code generates, 2 usage."""
    if arguments not in ([], ["--check"]):
        print("usage: python -m deploy.dashboards [--check]", file=sys.stderr)
        return 2
    document = generated()
    if not arguments:
        FILE.write_text(document, "utf-8")
    elif not FILE.exists() or FILE.read_text("utf-8") != document:
        print(f"{FILE}: not what the code generates; run `make dashboards`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
