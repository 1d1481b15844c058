"""Fetch what a study needs into one folder, verified, so that a run with it needs no network.

What is downloaded is compared with the hash that its source tells: the hub tells one of every file,
and of the others one is known or NLTK's index has it. A file that differs is removed and the others
stay; the same command goes on where it was.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import shutil
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from huggingface_hub import HfApi, constants, get_session, hf_hub_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from tqdm.auto import tqdm

from mars.planning.manifest import FetchError, Manifest, git_blob, sha256
from mars.planning.wanted import DATA_FILES, MODEL_FILES, Wanted

NLTK_INDEX = "https://raw.githubusercontent.com/nltk/nltk_data/gh-pages/index.xml"
PATTERNS = {"model": MODEL_FILES, "dataset": DATA_FILES}


@dataclass(frozen=True)
class Remote:
    """A file of a hub repository: its name, size and hash (SHA-256 in LFS, else git's)."""

    name: str
    size: int
    sha256: str | None
    blob: str | None


@dataclass(frozen=True)
class Listing:
    """What of a repository is wanted, as of one commit."""

    item: Wanted
    commit: str
    files: tuple[Remote, ...]

    @property
    def size(self) -> int:
        """Bytes of all of them."""
        return sum(file.size for file in self.files)


class Fetcher:
    """Fetches into one folder.

    Args:
        root: the folder, ``data_root``.
        say: called with a line for the user for each thing that is done.
        nltk_index: address of the index of NLTK's data.
    """

    def __init__(
        self, root: Path, say: Callable[[str], None] = print, nltk_index: str | None = None
    ) -> None:
        self.root = root
        self.say = say
        self.nltk_index = nltk_index or NLTK_INDEX
        self.api = HfApi(endpoint=os.environ.get("HF_ENDPOINT", constants.ENDPOINT))

    def fetch(self, items: Iterable[Wanted]) -> Manifest:
        """Fetch everything that is not there yet.

        Returns:
            What is there now.

        Raises:
            FetchError: one line naming the setting that asks for it, what is wrong, and what to do.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        manifest = Manifest(self.root)
        listings: list[Listing] = []
        others: list[Wanted] = []
        for item in items:
            if item.kind in PATTERNS:
                listings.append(self.listing(item))
            else:
                others.append(item)
        self._room(listings, manifest)
        for listing in listings:
            self._repository(listing, manifest)
        for item in others:
            self._guarded(item, self._file if item.kind == "file" else self._nltk, item, manifest)
        return manifest

    def listing(self, item: Wanted) -> Listing:
        """Ask the hub which files of a repository there are. Raises FetchError."""
        info = self._guarded(
            item,
            self.api.repo_info,
            item.name,
            repo_type=item.kind,
            revision=item.revision,
            files_metadata=True,
        )
        files = [
            Remote(one.rfilename, one.size or 0, one.lfs.sha256 if one.lfs else None, one.blob_id)
            for one in info.siblings or []
            if any(fnmatch.fnmatch(one.rfilename, pattern) for pattern in PATTERNS[item.kind])
        ]
        kinds = "weights (model*.safetensors)" if item.kind == "model" else "rows"
        if not any(_holds(item.kind, file.name) for file in files):
            raise FetchError(f"{item.key}: {item.name} has no {kinds}; name another")
        return Listing(item, str(info.sha), tuple(files))

    def told(self, item: Wanted) -> str:
        """A line for the user: what would be fetched, where to, and its size where it is known."""
        size = "size not known"
        if item.kind in PATTERNS:
            try:
                size = f"{self.listing(item).size / 1e6:,.1f} MB"
            except FetchError as error:
                size = f"size not known ({error})"
        revision = f"@{item.revision}" if item.revision else ""
        return f"{item.kind} {item.name}{revision} → {self.root / item.folder}: {size}"

    def _room(self, listings: list[Listing], manifest: Manifest) -> None:
        """Raise FetchError where the disk is too small for what is still to come."""
        needed = sum(
            file.size
            for listing in listings
            for file in listing.files
            if not manifest.has(f"{listing.item.folder}/{file.name}", listing.commit)
        )
        free = shutil.disk_usage(self.root).free
        if needed > free:
            raise FetchError(
                f"{self.root}: {needed / 1e9:.1f} GB are still to come and {free / 1e9:.1f} GB are "
                "free: make room, or choose another folder with --to"
            )

    def _repository(self, listing: Listing, manifest: Manifest) -> None:
        item, folder = listing.item, self.root / listing.item.folder
        source = f"{self.api.endpoint}/{'datasets/' * (item.kind == 'dataset')}{item.name}"
        for file in listing.files:
            name = f"{item.folder}/{file.name}"
            if manifest.has(name, listing.commit):
                continue
            self._guarded(
                item,
                hf_hub_download,
                item.name,
                file.name,
                repo_type=item.kind,
                revision=listing.commit,
                local_dir=folder,
                endpoint=self.api.endpoint,
            )
            manifest.add(name, _verified(folder / file.name, file, item), source, listing.commit)
        shutil.rmtree(folder / ".cache", ignore_errors=True)  # what was left of broken downloads
        size = f"{listing.size / 1e6:,.1f} MB"
        self.say(f"{item.name}: {len(listing.files)} files, {size}, commit {listing.commit[:12]}")

    def _file(self, item: Wanted, manifest: Manifest) -> None:
        name = f"{item.folder}/{item.name.rsplit('/', 1)[1]}"
        if not manifest.has(name):
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            _download(item.name, part := path.with_name(f".{path.name}.part"))
            found = sha256(part)
            if item.sha256 not in (None, found):
                part.unlink()
                raise _differs(item, item.name)
            part.replace(path)
            manifest.add(name, found, item.name)
        self.say(f"{item.name}: {manifest.files[name].size / 1e6:,.1f} MB")

    def _nltk(self, item: Wanted, manifest: Manifest) -> None:
        """A package of NLTK's data, unpacked; its index tells address and hash."""
        names = [name for name in manifest.files if name.startswith(f"{item.folder}/")]
        if not names or not all(map(manifest.has, names)):
            index = get_session().get(self.nltk_index, follow_redirects=True, timeout=30)
            index.raise_for_status()
            made = ElementTree.fromstring(index.text).find(f".//package[@id='{item.name}']")
            if made is None:
                raise FetchError(f"{item.key}: {self.nltk_index} has no package {item.name}")
            folder = self.root / item.folder / str(made.get("subdir"))
            folder.mkdir(parents=True, exist_ok=True)
            part, address = folder / f".{item.name}.part", str(made.get("url"))
            _download(address, part)
            kind = "sha256" if made.get("sha256_checksum") else "md5"
            with part.open("rb") as file:
                found = hashlib.file_digest(file, kind).hexdigest()
            if found != (made.get("sha256_checksum") or made.get("checksum")):
                part.unlink()
                raise _differs(item, address)
            with zipfile.ZipFile(part) as archive:
                archive.extractall(folder)
            part.unlink()
            for path in sorted((folder / item.name).rglob("*")):
                if path.is_file():
                    manifest.add(path.relative_to(self.root).as_posix(), sha256(path), address)
        self.say(f"NLTK's {item.name}")

    def _guarded(self, item: Wanted, call: Callable[..., Any], *args: Any, **more: Any) -> Any:
        """Call a function that uses the network; what goes wrong there is one line."""
        try:
            return call(*args, **more)
        except Exception as error:
            told = _explain(error, item)
            if isinstance(error, FetchError) or told is None:
                raise
            raise FetchError(f"{item.key}: {item.name}: {told}") from None


def _holds(kind: str, name: str) -> bool:
    """Whether a file holds weights or rows, and not what is told of them."""
    if kind == "model":
        return name.endswith(".safetensors")
    return not name.endswith(".md") and Path(name).name != "dataset_infos.json"


def _verified(path: Path, file: Remote, item: Wanted) -> str:
    """The SHA-256 of a file that is what the hub says; else it is removed. Raises FetchError."""
    found = sha256(path)
    same = found == file.sha256 if file.sha256 else file.blob in (None, git_blob(path))
    if not same:
        path.unlink()
        raise _differs(item, file.name)
    return found


def _differs(item: Wanted, name: str) -> FetchError:
    return FetchError(
        f"{item.key}: {name} of {item.name} is not what its source says it is (its hash differs); "
        "it was removed, the rest stays: fetch again"
    )


def _download(address: str, path: Path) -> None:
    """Download an address to a file, with a progress bar."""
    with get_session().stream("GET", address, follow_redirects=True, timeout=30) as response:
        response.raise_for_status()
        total = int(response.headers.get("Content-Length", 0)) or None
        with path.open("wb") as file, tqdm(total=total, unit="B", unit_scale=True) as bar:
            for piece in response.iter_bytes(1 << 16):
                file.write(piece)
                bar.update(len(piece))


def _explain(error: Exception, item: Wanted) -> str | None:
    """What went wrong, and the remedy; None: it was not the network."""
    page = f"https://huggingface.co/{'datasets/' * (item.kind == 'dataset')}{item.name}"
    if isinstance(error, GatedRepoError):
        remedy = "then log in with `hf auth login` or set HF_TOKEN"
        return f"gated: accept its terms on {page}, {remedy}"
    if isinstance(error, RevisionNotFoundError):
        return f"it has no revision {item.revision!r}; correct the study's file"
    if isinstance(error, RepositoryNotFoundError):
        return (
            f"no such {item.kind} on the hub, or a private one: check owner and name, or log in "
            "with `hf auth login`"
        )
    if isinstance(error, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set: unset it, or fetch on a machine that has a network"
    line = " ".join(str(error).split())
    if getattr(error, "response", None) is not None:  # the other side answered
        return line
    ours = isinstance(error, ConnectionError | EntryNotFoundError)
    if ours or any(kind.__module__.startswith("httpx") for kind in type(error).__mro__):
        return (
            f"no network ({line}): fetch on a machine that has one, and copy the folder "
            "(docs/clusters.md)"
        )
    return None
