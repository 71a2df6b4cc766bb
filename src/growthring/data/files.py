"""Official files: checked by md5, fetched on request, unpacked without trusting their paths."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
import urllib.request
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from growthring.data.errors import DataError
from growthring.files.foreign import open_plain

_BLOCK = 1 << 20
_MOST = 1 << 29  # bytes of a file in an archive
_TIMEOUT = 60  # seconds without a byte


@dataclass(frozen=True)
class OfficialFile:
    """A file that its authors publish at `url`, and its md5."""

    name: str
    url: str
    md5: str


def check_md5(path: Path, file: OfficialFile) -> None:
    """Refuse a file that is not the official one, byte for byte."""
    try:
        md5 = _md5(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    if md5 != file.md5:
        raise DataError(
            f"{path}: md5 {md5}, the official file has {file.md5}. It is truncated or another "
            f"file: delete it and get it again from {file.url}"
        )


def _md5(path: Path) -> str:
    with open_plain(path) as stream:
        digest = hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False))
    return digest.hexdigest()


def fetch(file: OfficialFile, folder: Path) -> Path:
    """Download a file into a folder; it appears there only when it is whole and its md5 is right."""
    target = folder / file.name
    part = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (
            urllib.request.urlopen(file.url, timeout=_TIMEOUT) as source,
            tempfile.NamedTemporaryFile(dir=folder, prefix=f".{file.name}.", delete=False) as sink,
        ):
            part = Path(sink.name)
            shutil.copyfileobj(source, sink, _BLOCK)
            sink.flush()
            os.fsync(sink.fileno())
        if (md5 := _md5(part)) != file.md5:
            raise DataError(
                f"{target}: what {file.url} sent has md5 {md5}, the official file has {file.md5}. "
                "The download broke off or the site sent something else: try again."
            )
        part.chmod(0o644)  # a temporary file is for its owner only
        part.replace(target)
    except (OSError, HTTPException) as error:
        raise DataError(
            f"{target}: could not be downloaded from {file.url} ({error}). "
            f"Get the file by other means and put it there."
        ) from error
    finally:
        if part is not None:
            part.unlink(missing_ok=True)
    return target


def read_members(archive: Path, folder: str, names: Sequence[str]) -> dict[str, bytes]:
    """Read folder/name for every name out of a .tar.gz; nothing else in it is looked at.

    Nothing is written, so that paths and links in the archive cannot lead anywhere.
    """
    wanted = {f"{folder}/{name}": name for name in names}
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                name = wanted.get(member.name.removeprefix("./"))
                stream = tar.extractfile(member) if name and member.isreg() else None
                if name and stream is not None:
                    if member.size > _MOST:
                        raise DataError(f"{archive}: {member.name} claims {member.size:,} bytes.")
                    contents[name] = stream.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{archive}: cannot be unpacked, truncated or damaged: {error}") from error
    if missing := [name for name in names if name not in contents]:
        raise DataError(f"{archive}: has no {folder}/{missing[0]}; not the official archive.")
    return contents


def write_folder(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write files into a new folder that appears only when it is whole.

    Does nothing where the folder exists already or cannot be written: it only saves time later.
    """
    scratch = None
    try:
        scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        for name, content in contents.items():
            (scratch / name).write_bytes(content)
        scratch.chmod(0o755)
        scratch.rename(folder)
    except OSError:
        pass
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
