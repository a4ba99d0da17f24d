"""The container image, the compose files and the manifests: their promises, checked without a container."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from gateway.config.schema import Schema
from gateway.config.settings import Settings
from tests.docs.page import unknown_keys
from tests.support.command_line import parsed
from tests.support.harness import ROOT

DEPLOY = ROOT / "deploy"
KUBERNETES = "1.30"
USER = 10001


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions with what they say."""
    text = re.sub(r"^\s*#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines if line)]


def stages() -> list[list[tuple[str, str]]]:
    """The instructions of each stage; what stands above the first is a default of theirs."""
    found: list[list[tuple[str, str]]] = []
    for each in instructions():
        if each[0] == "FROM":
            found.append([])
        if found:
            found[-1].append(each)
    return found


def test_the_image_is_built_of_what_is_locked_and_there() -> None:
    """Each package is one of the locks, with its hash; each file that is copied is sent to the build."""
    building, _ = stages()
    ignored = (ROOT / ".dockerignore").read_text().split()
    installs = [rest for word, rest in building if word == "RUN" and "pip install" in rest]

    assert "--require-hashes --no-deps" in installs[0]
    assert "--no-deps --no-build-isolation" in installs[1]
    for name in re.findall(r"-r (\S+)", installs[0]):
        assert (ROOT / name).exists(), name
    copied = [rest.split()[:-1] for word, rest in building if word == "COPY"]
    for source in (name.rstrip("/") for names in copied for name in names):
        assert (ROOT / source).exists(), source
        assert f"!{source}" in ignored, source


def test_the_image_starts_and_looks_after_the_program() -> None:
    """Its command, and the one that tells its health, are commands of the program."""
    words = dict(stages()[1])

    assert words["USER"] == f"{USER}:{USER}"
    assert words["ENTRYPOINT"] == '["chat-gateway"]'
    assert parsed(yaml.safe_load(words["CMD"])).role == "all"
    health = yaml.safe_load(words["HEALTHCHECK"].partition("CMD ")[2])
    assert parsed(health[1:]).alive is True


def compose(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / name).read_text())
    return loaded


@pytest.mark.parametrize("role", ["session", "channels"])
def test_each_role_is_a_container_that_can_write_its_workspace_alone(role: str) -> None:
    """Read-only, without capabilities, with time to drain, after what it needs; its variables are keys."""
    service = compose("compose.yaml")["services"][role]

    assert parsed(service["command"]).role == role
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["volumes"] == ["data:/data"]
    assert int(service["stop_grace_period"].removesuffix("s")) > 35
    assert all(one["condition"] == "service_healthy" for one in service["depends_on"].values())
    assert "user" not in service
    schema, named = Schema(Settings), service["environment"]
    keys = {name: tuple(name.removeprefix("CHAT_GATEWAY_").lower().split("__")) for name in named}
    assert [name for name, path in keys.items() if not schema.knows(path)] == []
    assert ("CHAT_GATEWAY_HTTP__TOKEN" in named) == (role == "session")


def test_no_password_stands_in_a_file_and_none_is_forgotten() -> None:
    """What has no default has to be set, and is named where it is missing."""
    for name in ("compose.yaml", "rabbitmq/compose.yaml"):
        text = (DEPLOY / name).read_text()
        for variable in ("RABBITMQ_USER", "RABBITMQ_PASSWORD"):
            assert f"${{{variable}:?set {variable}}}" in text


def test_compose_takes_the_files() -> None:
    """Where docker or podman has it they are read whole, and what has no default is asked for."""
    program = composing()
    if not program:
        pytest.skip("needs docker compose, or podman-compose")
    values = ("RABBITMQ_USER", "RABBITMQ_PASSWORD", "RABBITMQ_COOKIE", "CHAT_GATEWAY_HTTP_TOKEN")
    known = {name: value for name, value in os.environ.items() if name not in values}
    for name in ("compose.yaml", "rabbitmq/compose.yaml"):
        words = [*program, "--file", str(DEPLOY / name), "config", "--quiet"]
        done = subprocess.run(
            words,
            env=known | dict.fromkeys(values, "x" * 16),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        without = subprocess.run(words, env=known, capture_output=True, text=True, check=False)
        assert without.returncode != 0
        assert "set RABBITMQ_" in without.stderr


def composing() -> list[str]:
    """The program that reads compose files here; nothing where there is none."""
    for words in (["docker", "compose"], ["podman-compose"]):
        if shutil.which(words[0]) and not subprocess.run([*words, "version"], capture_output=True).returncode:
            return words
    return []


def test_the_three_nodes_find_each_other() -> None:
    """Each node of the configuration is a container of that name, and they pause rather than split."""
    services = compose("rabbitmq/compose.yaml")["services"]
    conf = (DEPLOY / "rabbitmq" / "rabbitmq.conf").read_text()

    assert {one["hostname"] for one in services.values()} == set(re.findall(r"= rabbit@(\S+)", conf))
    assert len(services) == 3
    assert "cluster_partition_handling = pause_minority" in conf


def manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))


def kind(name: str) -> list[dict[str, Any]]:
    return [one for one in manifests() if one["kind"] == name]


@pytest.mark.parametrize("manifest", manifests(), ids=lambda one: f"{one['kind']}-{one['metadata']['name']}")
def test_the_manifests_are_what_kubernetes_takes(manifest: dict[str, Any]) -> None:
    kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


@pytest.mark.parametrize("deployment", kind("Deployment"), ids=lambda one: one["metadata"]["name"])
def test_the_pods_are_confined_and_looked_after(deployment: dict[str, Any]) -> None:
    """Not root, read-only, without capabilities or a token of the cluster; probed, with time to drain."""
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    confined = container["securityContext"]

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == USER
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert confined["readOnlyRootFilesystem"] is True
    assert confined["allowPrivilegeEscalation"] is False
    assert confined["capabilities"] == {"drop": ["ALL"]}
    assert {"startupProbe", "livenessProbe"} <= container.keys()
    assert pod["terminationGracePeriodSeconds"] > 35
    assert container["resources"]["limits"]["memory"]


def test_both_roles_share_one_workspace() -> None:
    """The same claim, at the folder that the configuration names."""
    (claim,) = kind("PersistentVolumeClaim")
    config = tomllib.loads(kind("ConfigMap")[0]["data"]["config.toml"])
    assert list(unknown_keys(config)) == []
    for deployment in kind("Deployment"):
        pod = deployment["spec"]["template"]["spec"]
        claims = [volume for volume in pod["volumes"] if "persistentVolumeClaim" in volume]
        mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}

        assert [one["persistentVolumeClaim"]["claimName"] for one in claims] == [claim["metadata"]["name"]]
        assert mounts[claims[0]["name"]] == config["workspace"]
        assert all(str(path).startswith(mounts["secrets"]) for path in _files_of(config))
        probed = pod["containers"][0]["livenessProbe"].get("exec", {}).get("command")
        for words in (pod["containers"][0]["args"], *([probed[1:]] if probed else [])):
            assert parsed(words)


def _files_of(table: dict[str, Any]) -> list[Path]:
    found: list[Path] = []
    for name, value in table.items():
        if isinstance(value, dict):
            found += _files_of(value)
        elif name.endswith("_file"):
            found.append(Path(value))
    return found


@pytest.mark.parametrize("script", sorted(DEPLOY.rglob("*.sh")), ids=lambda path: path.name)
def test_the_scripts_parse(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)
    assert shlex.split(script.read_text().splitlines()[0])[0].startswith("#!")
