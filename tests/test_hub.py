"""Models by name: where they are looked for, and what a user is told where they cannot be had."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from released_checkpoints import lay_out

from mars import models
from mars.config import hub_reference, located
from mars.models import CheckpointError, hub

COMMIT = "0" * 40


class Hub(BaseHTTPRequestHandler):
    """The few answers of a hub that a download asks for; ``status`` and ``code`` make it refuse."""

    status, code = 200, ""
    files: Path
    asked: list[str]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.status != 200:
            return self._send(self.status, b"{}", {"X-Error-Code": self.code})
        if self.path.startswith("/api/models/owner/tiny/tree/"):
            entries = [
                {"type": "file", "oid": "1", "path": f.name, "size": f.stat().st_size}
                for f in sorted(self.files.iterdir())
            ]
            return self._send(200, json.dumps(entries).encode())
        if self.path.startswith("/api/models/owner/tiny"):
            return self._send(200, json.dumps({"id": "owner/tiny", "sha": COMMIT}).encode())
        content = (self.files / self.path.rsplit("/", 1)[1]).read_bytes()
        etag = {"ETag": f'"{abs(hash(self.path))}"', "X-Repo-Commit": COMMIT}
        return self._send(200, content, etag)

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(tmp_path, monkeypatch) -> Iterator[type[Hub]]:
    """A hub on this machine that has ``owner/tiny``, and an empty cache."""
    lay_out(tmp_path / "files")
    handler = type("OneHub", (Hub,), {"files": tmp_path / "files", "asked": []})
    at = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=at.serve_forever, args=(0.01,), daemon=True).start()
    use(monkeypatch, tmp_path, f"http://127.0.0.1:{at.server_port}")
    yield handler
    at.shutdown()
    at.server_close()


def use(monkeypatch, tmp_path, endpoint):
    told = {"endpoint": endpoint, "cache_dir": tmp_path / "cache", "token": False}
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(
        hub, "snapshot_download", partial(huggingface_hub.snapshot_download, **told)
    )


def refusal(ref="owner/tiny"):
    with pytest.raises(CheckpointError) as error:
        models.resolve_checkpoint(ref)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith("owner/tiny: ")
    return str(error.value)


def test_a_model_is_downloaded_once_and_without_its_code(server):
    folder = models.resolve_checkpoint("owner/tiny")
    assert models.load_model(folder).config.model_type == "qwen2"
    assert {f.name for f in folder.iterdir()} == {
        f.name for f in server.files.iterdir() if f.suffix != ".py"
    }
    asked = len(server.asked)
    assert models.resolve_checkpoint("owner/tiny") == folder
    assert len(server.asked) == asked  # what is whole in the cache asks nothing of the network


@pytest.mark.parametrize(
    ("status", "code", "told"),
    [
        (403, "GatedRepo", "its owners ask for consent: give it on https://huggingface.co/owner"),
        (401, "RepoNotFound", "no such model on the hub: check the spelling of owner/name"),
        (404, "RepoNotFound", "no such model on the hub: check the spelling of owner/name"),
        (404, "RevisionNotFound", "the hub has no revision 'v9' of it"),
        (500, "", "the hub answered with status 500: try again later"),
    ],
)
def test_what_the_hub_refuses_is_one_line(server, status, code, told):
    server.status, server.code = status, code
    assert told in refusal("owner/tiny@v9")


def test_no_network_and_no_weights(tmp_path, monkeypatch):
    use(monkeypatch, tmp_path, "http://127.0.0.1:9")  # nothing listens there
    assert "the hub cannot be reached; where there is a network, `mars fetch" in refusal()


def test_offline_by_choice(tmp_path, monkeypatch):
    use(monkeypatch, tmp_path, "http://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert "the hub cannot be reached" in refusal()


def test_a_repository_without_safetensors(server):
    (server.files / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors is missing; delete"):
        models.resolve_checkpoint("owner/tiny")


def test_a_folder_comes_before_the_hub(tmp_path, monkeypatch):
    use(monkeypatch, tmp_path, "http://127.0.0.1:9")
    monkeypatch.chdir(tmp_path)
    lay_out(tmp_path / "owner" / "tiny")
    assert models.resolve_checkpoint("owner/tiny") == Path("owner/tiny")


# ------------------------------------------------------------------------------- references


@pytest.mark.parametrize(
    ("ref", "named"),
    [
        ("Qwen/Qwen2.5-0.5B-Instruct", ("Qwen/Qwen2.5-0.5B-Instruct", None)),
        ("hub:owner/name", ("owner/name", None)),
        ("owner/name@refs/pr/1", ("owner/name", "refs/pr/1")),
        ("embedded:toy-s", None),
        ("results/checkpoints/smollm2", None),
        ("/models/name", None),
        ("./models/name", None),
        ("../name", None),
        ("name", None),
    ],
)
def test_what_names_a_hub_model(ref, named):
    assert hub_reference(ref) == named


def test_a_hub_model_below_data_root_is_a_folder(tmp_path):
    folder = tmp_path / "models" / "owner" / "name"
    assert located("owner/name", str(tmp_path)) == "owner/name"
    assert located("owner/name", None, "v1") == "owner/name@v1"
    assert located("owner/name@v2", None, "v1") == "owner/name@v2"
    folder.mkdir(parents=True)
    assert located("owner/name", str(tmp_path), "v1") == str(folder)
    assert located("embedded:toy-s", str(tmp_path)) == "embedded:toy-s"
