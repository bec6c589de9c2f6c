"""Kubernetes accepts the manifests of ``conf/kubernetes``, and they fit the store and the image."""

import json
import os
import re
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
import yaml

from logstore.settings import load_settings
from logstore.settings_sources import variable_name
from tests.install.test_deployment_files import STOP_SECONDS
from tests.support import deployment
from tests.support.server_process import ROOT

FILES = sorted((ROOT / "conf/kubernetes").glob("*.yaml"))
SCHEMAS = json.loads(Path(__file__).with_name("kubernetes-1.34.json").read_text())
PREFIXES = {"v1": "core.v1", "apps/v1": "apps.v1", "policy/v1": "policy.v1", "networking.k8s.io/v1": "networking.v1"}
#: Values that the downward API and the secret fill in.
FIELDS = {
    "status.podIP": "10.1.2.3",
    "metadata.name": "logstore-broker-1",
    "metadata.namespace": "shop",
    "metadata.labels['apps.kubernetes.io/pod-index']": "1",
    "spec.nodeName": "node-a",
}


def documents(file: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(file.read_text()) if document]


def check(document: dict[str, Any]) -> None:
    name = f"io.k8s.api.{PREFIXES[document['apiVersion']]}.{document['kind']}"
    jsonschema.Draft7Validator({**SCHEMAS, "$ref": f"#/$defs/{name}"}).validate(document)


def the(file: Path, kind: str) -> dict[str, Any]:
    (found,) = [document for document in documents(file) if document["kind"] == kind]
    return found


def container(file: Path) -> dict[str, Any]:
    (found,) = the(file, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    return found


def environment(file: Path) -> dict[str, str]:
    """Return the variables of the container as the kubelet sets them: ``$(NAME)`` refers to an earlier one."""
    found: dict[str, str] = {}
    for variable in container(file)["env"]:
        source = variable.get("valueFrom", {})
        field = source.get("fieldRef", {}).get("fieldPath")
        value = variable.get("value") or (
            FIELDS[field] if field else "a secret that is made up for this test, 32 bytes"
        )
        found[variable["name"]] = expanded(value, found)
    return found


def expanded(text: str, variables: dict[str, str]) -> str:
    return re.sub(r"\$\((\w+)\)", lambda match: variables[match[1]], text)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_kubernetes_takes_the_manifest(file: Path):
    assert {"StatefulSet", "Service", "NetworkPolicy"} <= {document["kind"] for document in documents(file)}
    for document in documents(file):
        check(document)


def test_a_misspelt_field_is_found():
    document = the(FILES[0], "StatefulSet")
    document["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    with pytest.raises(jsonschema.ValidationError, match="livenesProbe"):
        check(document)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_container_fits_the_image_and_the_store(file: Path, monkeypatch: pytest.MonkeyPatch):
    runtime = deployment.stages()[-1]
    pod = the(file, "StatefulSet")["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] >= STOP_SECONDS
    user = pod["securityContext"]
    assert f"{user['runAsUser']}:{user['runAsGroup']}" == runtime.one("USER")
    assert user["fsGroup"] == user["runAsGroup"], "the volumes belong to the store"
    mounted = {mount["name"]: mount["mountPath"] for mount in container(file)["volumeMounts"]}
    claims = [claim["metadata"]["name"] for claim in the(file, "StatefulSet")["spec"]["volumeClaimTemplates"]]
    assert mounted.keys() == {volume["name"] for volume in pod["volumes"]} | set(claims)
    assert runtime.one("VOLUME") in mounted.values()
    # The settings exist under these names, and the store accepts them together.
    variables = environment(file)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    settings = load_settings()
    known = {variable_name(name.replace("_", ".")) for name in type(settings).model_fields}
    known |= {variable_name(name) for name in settings.topic_defaults}
    assert {name for name in variables if name.startswith("LOGSTORE_")} <= known
    places = [mount for name, mount in mounted.items() if name in claims]
    assert str(settings.log_dirs or runtime.one("VOLUME")) in places, "the journal is on the pod's own volume"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_services_policies_and_sets_select_the_same_pods_and_ports(file: Path):
    labels = the(file, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    names = {port["name"]: port["containerPort"] for port in container(file)["ports"]}
    assert names["http"] == int(deployment.PORT)
    services = [document for document in documents(file) if document["kind"] == "Service"]
    assert the(file, "StatefulSet")["spec"]["serviceName"] in [service["metadata"]["name"] for service in services]
    for service in services:
        assert service["spec"]["selector"] == labels
        assert {port["targetPort"]: port["port"] for port in service["spec"]["ports"]} == names
    for document in documents(file):
        spec = document["spec"]
        for selector in [spec.get("selector"), spec.get("podSelector")]:
            if selector and document["kind"] != "Service":
                assert selector["matchLabels"] == labels
    hosts = environment(file)["LOGSTORE_ALLOWED_HOSTS"].split(",")
    assert {service["metadata"]["name"] for service in services} & set(hosts), "clients call it by the service's name"


@pytest.mark.long
@pytest.mark.system
def test_the_command_of_the_one_node_starts_a_store_whose_probes_hold(tmp_path: Path):
    file = ROOT / "conf/kubernetes/store.yaml"
    entry = json.loads(deployment.stages()[-1].one("ENTRYPOINT"))
    variables = environment(file)
    (tmp_path / "tmp").mkdir()
    places = {
        "/opt/logstore/bin/logstore": str(deployment.environment_command()),
        "/data": str(tmp_path / "data"),
        "0.0.0.0": "127.0.0.1",
        deployment.PORT: "0",
    }
    command = deployment.placed([*entry, *(expanded(text, variables) for text in container(file)["args"])], places)
    variables |= {"LOGSTORE_KAFKA_LISTENERS": "127.0.0.1:0", "TMPDIR": str(tmp_path / "tmp")}
    with deployment.started(command, tmp_path, {**os.environ, **variables}) as url:
        for probe in ("livenessProbe", "readinessProbe"):
            path = container(file)[probe]["httpGet"]["path"]
            # The kubelet uses the pod's address, clients use the service's name.
            for host in ("10.1.2.3:8082", "logstore.shop.svc:8082"):
                assert httpx.get(url + path, headers={"Host": host}).status_code == 200
