"""A hub of its own on this machine: what `huggingface_hub` and NLTK ask of the real ones."""

from __future__ import annotations

import hashlib
import io
import json
import re
import threading
import zipfile
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "c0ffee" * 6 + "c0ff"
LARGE = (".safetensors", ".parquet")  # in LFS: their hash is SHA-256


@dataclass
class Hub:
    """What it has, how it misbehaves, and what it was asked.

    Attributes:
        repositories: "models/owner/name" or "datasets/owner/name" → file → content.
        files: path → content, of anything else.
        gated: repositories that want a token.
        broken: files ("name" alone) whose content arrives with another first byte.
        asked: every download, as its path.
    """

    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    address: str = ""

    def __enter__(self) -> Hub:
        handler = type("Handler", (_Handler,), {"hub": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def add_nltk(self, package: str, files: dict[str, bytes]) -> str:
        """Add a package of NLTK's data; returns the address of the index."""
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            for name, content in files.items():
                archive.writestr(f"{package}/{name}", content)
        self.files[f"/{package}.zip"] = content = packed.getvalue()
        size, digest = len(content), hashlib.md5(content).hexdigest()
        self.files["/index.xml"] = (
            f'<nltk_data><packages><package id="{package}" name="{package}" subdir="tokenizers" '
            f'size="{size}" unzipped_size="{size}" unzip="1" checksum="{digest}" '
            f'sha256_checksum="{hashlib.sha256(content).hexdigest()}" '
            f'url="{self.address}/{package}.zip"/></packages><collections/></nltk_data>'
        ).encode()
        return f"{self.address}/index.xml"


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        path = self.path.split("?")[0]
        if path in self.hub.files:
            return self._send(self.hub.files[path], {}, body)
        told = re.fullmatch(r"/api/((?:models|datasets)/[^/]+/[^/]+)(?:/revision/(.+))?", path)
        file = re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if told:
            repository, revision = told[1], told[2]
        elif file:
            repository, revision = f"{'datasets' if file[1] else 'models'}/{file[2]}", file[3]
        else:
            return self._refuse(404, "EntryNotFound")
        if repository in self.hub.gated:
            return self._refuse(403, "GatedRepo")
        if repository not in self.hub.repositories:
            return self._refuse(404, "RepoNotFound")
        if revision not in (None, "main", COMMIT):
            return self._refuse(404, "RevisionNotFound")
        files = self.hub.repositories[repository]
        if told:
            siblings = [_sibling(name, content) for name, content in files.items()]
            made = {"id": repository.split("/", 1)[1], "sha": COMMIT, "siblings": siblings}
            return self._send(json.dumps(made).encode(), {}, body)
        name = file[4]
        if name not in files:
            return self._refuse(404, "EntryNotFound")
        content = files[name]
        etag = _sibling(name, content)
        etag = etag["lfs"]["sha256"] if "lfs" in etag else etag["blobId"]
        if body:
            self.hub.asked.append(path)
        if body and name in self.hub.broken:
            content = bytes([content[0] ^ 1]) + content[1:]
        return self._send(content, {"X-Repo-Commit": COMMIT, "ETag": f'"{etag}"'}, body)

    def _send(self, content: bytes, headers: dict[str, str], body: bool) -> None:
        self.send_response(200)
        for key, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()


def _sibling(name: str, content: bytes) -> dict[str, object]:
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    made: dict[str, object] = {"rfilename": name, "size": len(content), "blobId": blob}
    if name.endswith(LARGE):
        digest = hashlib.sha256(content).hexdigest()
        made["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 130}
    return made
