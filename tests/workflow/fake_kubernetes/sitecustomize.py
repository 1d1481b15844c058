"""Stands in for a Kubernetes cluster, in every Python that has this folder on its path.

A job that is created is noted, and its files are made at once; it has then succeeded.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kubernetes
import kubernetes.client
import kubernetes.config

NOTES = Path(os.environ["FAKE_KUBERNETES"])
MAKES: dict[str, list[str]] = json.loads(os.environ["FAKE_KUBERNETES_MAKES"])


class Core:
    """Of `CoreV1Api` what the executor uses."""

    def create_namespaced_secret(self, *_: Any, **__: Any) -> None:
        pass

    def delete_namespaced_secret(self, *_: Any, **__: Any) -> None:
        pass

    def list_namespaced_pod(self, **_: Any) -> Any:
        return SimpleNamespace(items=[])


class Batch:
    """Of `BatchV1Api`."""

    def create_namespaced_job(self, namespace: str, body: Any) -> None:
        made = kubernetes.client.ApiClient().sanitize_for_serialization(body)
        with NOTES.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"namespace": namespace, **made}) + "\n")
        (container,) = made["spec"]["template"]["spec"]["containers"]
        for part, files in MAKES.items():
            if part in container["args"][1]:
                for path in map(Path, files):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(part)

    def read_namespaced_job_status(self, *_: Any) -> Any:
        return SimpleNamespace(status=SimpleNamespace(failed=0, succeeded=1))

    def delete_namespaced_job(self, *_: Any, **__: Any) -> None:
        pass


kubernetes.config.load_kube_config = lambda: None
kubernetes.client.CoreV1Api = Core
kubernetes.client.BatchV1Api = Batch
