"""Models by name: on the disk where they are, from the Hugging Face hub where they are not.

What is asked for is only weights, configuration and tokenizer: never a repository's code.
"""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    IncompleteSnapshotError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from mars.config import hub_reference
from mars.models.files import EMBEDDED, CheckpointError, check_folder

FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "merges.txt", "vocab.txt")
"""What a checkpoint needs of a repository."""


def resolve_checkpoint(ref: str | Path) -> Path:
    """The folder of a checkpoint, checked as far as its files tell.

    Args:
        ref: ``embedded:<name>``, a folder, or a hub model, ``owner/name`` or
            ``owner/name@revision``. A hub model is taken from the local cache of the hub, and
            downloaded where that lacks it.

    Raises:
        CheckpointError: it is not there and cannot be had, a file is missing, or not whole.
    """
    if str(ref).startswith("embedded:"):
        name = str(ref).removeprefix("embedded:")
        return check_folder(EMBEDDED / name, f"make it with `mars pretrain {name}`")
    named = None if Path(ref).exists() else hub_reference(str(ref))
    return check_folder(Path(ref)) if named is None else from_hub(*named)


def from_hub(name: str, revision: str | None = None) -> Path:
    """The folder of a hub model in the hub's local cache, downloaded where it is not whole there.

    Args:
        name: ``owner/name``; revision: commit, branch or tag.

    Raises:
        CheckpointError: one line: what is wrong, and what to do.
    """
    try:
        found = _snapshot(name, revision, local_files_only=True)
        return check_folder(found)
    except (LocalEntryNotFoundError, IncompleteSnapshotError, CheckpointError):
        pass  # not there, or not whole: the hub has it
    try:
        found = _snapshot(name, revision, local_files_only=False)
    except Exception as error:
        raise CheckpointError(f"{name}: {_problem(error, name, revision)}") from None
    return check_folder(found, f"delete {found.parents[1]} and download it again")


def _snapshot(name: str, revision: str | None, local_files_only: bool) -> Path:
    return Path(
        snapshot_download(
            name,
            revision=revision,
            allow_patterns=list(FILES),
            local_files_only=local_files_only,
        )
    )


def _problem(error: Exception, name: str, revision: str | None) -> str:
    """What went wrong with a download and what to do, in one line."""
    offline = (
        "no folder of that name here, and the hub cannot be reached; where there is a network, "
        "`mars fetch --config …` puts a study's models into its data_root; or name a checkpoint "
        "folder"
    )
    page = f"https://huggingface.co/{name}"
    if isinstance(error, LocalEntryNotFoundError) and isinstance(error.__cause__, HfHubHTTPError):
        error = error.__cause__  # the hub answered, and the cache was looked at after that
    match error:
        case GatedRepoError():
            return (
                f"its owners ask for consent: give it on {page}, make a token, and set HF_TOKEN "
                "(or `hf auth login`)"
            )
        case RepositoryNotFoundError():
            return (
                "no folder of that name here, and no such model on the hub: check the spelling of "
                "owner/name; a private one needs HF_TOKEN"
            )
        case RevisionNotFoundError():
            return (
                f"the hub has no revision {revision!r} of it: check the spelling, or leave it out"
            )
        case EntryNotFoundError() | LocalEntryNotFoundError() | IncompleteSnapshotError():
            return offline
        case OfflineModeIsEnabled() | ConnectionError() | TimeoutError():
            return offline
        case HfHubHTTPError():
            status = getattr(error.response, "status_code", "unknown")
            return f"the hub answered with status {status}: try again later"
    line = " ".join(str(error).split())[:200]
    if type(error).__module__.partition(".")[0].startswith("httpx"):
        return offline
    return f"it cannot be downloaded ({line}): try again"
