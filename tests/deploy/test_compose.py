"""deploy/compose: valid, complete, and in step with the files that it mounts."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.config import load
from proxy.profiles import read_profiles
from tests.deploy.files import DEPLOY, ROOT, YAMLLINT, documents, run

FOLDER = DEPLOY / "compose"
COMPOSE: Any = documents(FOLDER / "compose.yaml")[0]


def mounts(service: str) -> dict[str, str]:
    """What is mounted from files, by where it appears."""
    pairs = (mount.split(":")[:2] for mount in COMPOSE["services"][service].get("volumes", ()))
    return {target: source for source, target in pairs if source.startswith(".")}


def test_it_is_what_compose_takes() -> None:
    schema = ("--builtin-schema", "vendor.compose-spec")
    run(ROOT / ".venv/bin/check-jsonschema", *schema, FOLDER / "compose.yaml")
    run(ROOT / ".venv/bin/yamllint", "--strict", "-d", YAMLLINT, *sorted(FOLDER.glob("*.y*ml")))


def test_every_mounted_file_is_there_and_every_volume_is_declared() -> None:
    for name, service in COMPOSE["services"].items():
        for source in mounts(name).values():
            assert (FOLDER / source).exists(), (name, source)
        named = {mount.split(":")[0] for mount in service.get("volumes", ())} - set(mounts(name).values())
        assert named <= set(COMPOSE["volumes"])


def test_the_proxy_can_read_its_configuration_and_profiles() -> None:
    config = load(FOLDER / mounts("proxy")["/etc/seam/seam.yaml"])
    profiles = read_profiles(FOLDER / mounts("proxy")[str(config.profiles.folder)])
    assert config.models["main"].profile in profiles
    assert "--served-model-name=main" in COMPOSE["services"]["vllm"]["command"]
    hosts = {re.split("[/:]+", url)[1] for url in (config.upstreams["default"].url, config.state.store)}
    assert hosts <= set(COMPOSE["services"])
    grace = int(COMPOSE["services"]["proxy"]["stop_grace_period"].removesuffix("s"))
    assert grace >= config.listen.drain_seconds + 10


def test_vllm_finds_the_processor_itself() -> None:
    (target,) = (t for t in mounts("vllm") if t.endswith("/processor.py"))
    assert (FOLDER / mounts("vllm")[target]).samefile(ROOT / "calibrators/processor.py")
    assert COMPOSE["services"]["vllm"]["environment"]["PYTHONPATH"] == str(Path(target).parent)


def test_prometheus_has_the_rules_that_it_reads_and_scrapes_services() -> None:
    config: Any = documents(FOLDER / "prometheus.yml")[0]
    own = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    assert config["rule_files"] == own["rule_files"]
    assert {f"/etc/prometheus/{name}" for name in config["rule_files"]} <= set(mounts("prometheus"))
    jobs = {job["job_name"]: job["static_configs"][0]["targets"] for job in config["scrape_configs"]}
    assert set(jobs) > {job["job_name"] for job in own["scrape_configs"]}
    assert {target.split(":")[0] for targets in jobs.values() for target in targets} <= set(
        COMPOSE["services"]
    )


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is missing (apt install prometheus)")
def test_prometheus_takes_its_configuration_as_it_is_mounted(tmp_path: Path) -> None:
    for target, source in mounts("prometheus").items():
        shutil.copy(FOLDER / source, tmp_path / Path(target).name)
    run("promtool", "check", "config", tmp_path / "prometheus.yml")


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    grafana = COMPOSE["services"]["grafana"]
    assert grafana["environment"]["PROMETHEUS_URL"] == "http://prometheus:9090"
    (provider,) = documents(DEPLOY / "grafana/provisioning/dashboards/seam.yaml")[0]["providers"]
    assert any(target.startswith(provider["options"]["path"] + "/") for target in mounts("grafana"))


def test_only_the_proxy_is_open_to_other_hosts() -> None:
    for name, service in COMPOSE["services"].items():
        for port in service.get("ports", ()):
            assert name == "proxy" or port.startswith("127.0.0.1:")
