"""One real vLLM server for the whole session, for the tests marked `server`."""

import os
from collections.abc import Iterator

import pytest

from bench.lab.server import Settings, checkpoint, lab_server


@pytest.fixture(scope="session")
def vllm_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The root URL of a vLLM server with the lab model and our processor.

    SEAM_TEST_VLLM_URL names one that runs already, which spares its start while working.
    """
    if running := os.environ.get("SEAM_TEST_VLLM_URL"):
        yield running.rstrip("/")
        return
    log = tmp_path_factory.mktemp("vllm") / "vllm.log"
    with lab_server(Settings(model=checkpoint(), log=log)) as server:
        yield server.url
