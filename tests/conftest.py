"""One real vLLM server for the whole session, for the tests marked `server`."""

import os
from collections.abc import Iterator

import pytest

from bench.lab.server import Settings, checkpoint, lab_server

_RUNNING = pytest.StashKey[str | None]()


def pytest_configure(config: pytest.Config) -> None:
    """Take the variable out of the environment, in which the proxy reads all of ours as settings."""
    config.stash[_RUNNING] = os.environ.pop("SEAM_TEST_VLLM_URL", None)


@pytest.fixture(scope="session")
def vllm_url(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The root URL of a vLLM server with the lab model and our processor.

    SEAM_TEST_VLLM_URL names one that runs already, which spares its start while working.
    """
    if running := pytestconfig.stash[_RUNNING]:
        yield running.rstrip("/")
        return
    log = tmp_path_factory.mktemp("vllm") / "vllm.log"
    with lab_server(Settings(model=checkpoint(), log=log)) as server:
        yield server.url
