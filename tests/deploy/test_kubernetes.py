"""deploy/kubernetes: what it builds is valid, complete, and fits the proxy that it runs."""

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from proxy.config import load
from proxy.profiles import read_profiles
from tests.deploy.files import DEPLOY, ROOT, YAMLLINT, built, documents, run

FOLDER = DEPLOY / "kubernetes"
DOCUMENTS = built()


def one(kind: str, name: str) -> Any:
    """The object of a kind whose name begins so: a generated name ends in a hash."""
    found = [d for d in DOCUMENTS if d["kind"] == kind and d["metadata"]["name"].startswith(name)]
    assert len(found) == 1, (kind, name)
    return found[0]


def pod(name: str) -> Any:
    """The pod of a deployment."""
    return one("Deployment", name)["spec"]["template"]["spec"]


def deployments() -> list[Any]:
    return [d for d in DOCUMENTS if d["kind"] == "Deployment"]


def test_every_file_is_used_and_every_used_file_is_there() -> None:
    (kustomization,) = documents(FOLDER / "kustomization.yaml")
    used = {name for each in kustomization["configMapGenerator"] for name in each["files"]}
    used |= {"kustomization.yaml", *kustomization["resources"]}
    assert used == {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*") if path.is_file()}


@pytest.mark.parametrize("version", ["1.29", "1.32"])
def test_the_objects_are_what_kubernetes_takes(version: str) -> None:
    for document in DOCUMENTS:
        if document["kind"] != "ServiceMonitor":  # the Prometheus operator's, checked below
            kubernetes_validate.validate(document, version, strict=True)


def test_the_files_pass_yamllint() -> None:
    run(ROOT / ".venv/bin/yamllint", "--strict", "-d", YAMLLINT, *sorted(FOLDER.rglob("*.yaml")))


def test_vllm_gets_the_processor_that_this_release_has() -> None:
    held = one("ConfigMap", "seam-processor")["data"]
    assert held == {"processor.py": (ROOT / "calibrators/processor.py").read_text("utf-8")}
    container = pod("vllm")["containers"][0]
    mount = next(m for m in container["volumeMounts"] if m["name"] == "processor")
    assert {"name": "PYTHONPATH", "value": mount["mountPath"]} in container["env"]
    assert "--logits-processors=processor:ToolEntryBias" in container["args"]


def test_the_proxy_can_read_its_configuration_and_profiles(tmp_path: Path) -> None:
    (tmp_path / "seam.yaml").write_text(one("ConfigMap", "seam-config")["data"]["seam.yaml"])
    config = load(tmp_path / "seam.yaml")
    for name, text in one("ConfigMap", "seam-profiles")["data"].items():
        (tmp_path / "profiles").mkdir(exist_ok=True)
        (tmp_path / "profiles" / name).write_text(text)
    assert config.models["main"].profile in read_profiles(tmp_path / "profiles")
    args = pod("vllm")["containers"][0]["args"]
    assert "--served-model-name=main" in args
    assert config.upstreams["default"].url == "http://vllm:8000/v1"
    assert config.state.store == "redis://redis:6379/0"
    mounts = {m["mountPath"] for m in pod("seam")["containers"][0]["volumeMounts"]}
    assert {"/etc/seam/seam.yaml", str(config.profiles.folder)} <= mounts
    assert {str(config.decisions.path.parent), str(config.drift.path.parent)} <= mounts


def test_the_log_fits_its_volume() -> None:
    config = load(FOLDER / "seam.yaml")
    volumes = pod("seam")["volumes"]
    size = next(v["emptyDir"]["sizeLimit"] for v in volumes if v["name"] == "log")
    assert size.endswith("Mi")
    assert config.decisions.max_bytes * (config.decisions.keep + 1) < int(size[:-2]) * 2**20


def test_no_pod_gets_variables_that_its_program_would_take_for_settings() -> None:
    # A Service `seam` puts SEAM_SERVICE_HOST into every pod, which Seam refuses as an unknown setting.
    for each in deployments():
        assert each["spec"]["template"]["spec"]["enableServiceLinks"] is False


def test_a_pod_has_longer_to_end_than_its_replies_have() -> None:
    drain = load(FOLDER / "seam.yaml").listen.drain_seconds
    spec = pod("seam")
    slept = int(spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    assert spec["terminationGracePeriodSeconds"] >= slept + drain + 15


@pytest.mark.parametrize("name", ["seam", "redis"])
def test_what_is_ours_keeps_to_the_restricted_standard(name: str) -> None:
    spec = pod(name)
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    for container in spec["containers"]:
        own = container["securityContext"]
        assert own["allowPrivilegeEscalation"] is False
        assert own["readOnlyRootFilesystem"] is True
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]


def test_probes_ask_routes_that_the_proxy_has() -> None:
    container = pod("seam")["containers"][0]
    asked = {
        kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")
    }
    assert asked == {"startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz"}
    assert pod("seam")["securityContext"]["runAsUser"] == 10001


def test_the_autoscaler_goes_by_a_metric_that_the_proxy_has_and_keeps_several_replicas() -> None:
    scaler = one("HorizontalPodAutoscaler", "seam")["spec"]
    metrics = [m["pods"]["metric"]["name"] for m in scaler["metrics"] if m["type"] == "Pods"]
    assert metrics == ["seam_requests_in_flight"]
    assert f"`{metrics[0]}`" in (ROOT / "docs/metrics.md").read_text("utf-8")
    assert scaler["minReplicas"] >= 2
    assert "replicas" not in one("Deployment", "seam")["spec"]
    assert one("PodDisruptionBudget", "seam")["spec"]["maxUnavailable"] == 1


def test_every_selector_finds_its_pods_and_every_named_port_is_one() -> None:
    labels = {
        each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"] for each in deployments()
    }
    containers = {name: pod(name)["containers"] for name in labels}
    ports = {
        name: {port["name"]: port["containerPort"] for each in found for port in each["ports"]}
        for name, found in containers.items()
    }
    services = {d["metadata"]["name"]: d for d in DOCUMENTS if d["kind"] == "Service"}
    assert set(services) == set(labels) == {"seam", "vllm", "redis"}
    for name, service in services.items():
        assert service["spec"]["selector"].items() <= labels[name].items()
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= set(ports[name])
    for monitor in (d for d in DOCUMENTS if d["kind"] == "ServiceMonitor"):
        service = services[monitor["metadata"]["name"]]
        assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        named = {port["name"] for port in service["spec"]["ports"]}
        assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= named
    for policy in (d for d in DOCUMENTS if d["kind"] == "NetworkPolicy"):
        wanted = policy["spec"]["podSelector"].get("matchLabels", {})
        found = [name for name, has in labels.items() if wanted.items() <= has.items()]
        assert found
        for rule in policy["spec"].get("ingress", ()):
            assert {port["port"] for port in rule["ports"]} <= set(ports[found[0]].values())


def test_only_what_needs_them_reaches_the_model_server_and_redis() -> None:
    deny = one("NetworkPolicy", "nothing-else")["spec"]
    assert deny == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    peers = one("NetworkPolicy", "redis")["spec"]["ingress"][0]["from"]
    assert [peer["podSelector"]["matchLabels"]["app.kubernetes.io/name"] for peer in peers] == ["seam"]
    assert "egress" not in one("NetworkPolicy", "redis")["spec"]
