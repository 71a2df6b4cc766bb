"""Single arrays out of a .npz: only what is asked for, and checked against the file before it is allocated.

The directory of the zip and the header of each array are claims of whoever made the file. An array is read if its
header, the directory and the bytes that are there agree; nothing is ever unpickled.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from growthring.data.errors import DataError
from growthring.data.memory import check_memory
from growthring.files.foreign import open_plain

_RATIO = 1032  # the most that deflate makes out of a byte
_SLACK = 4096  # a header alone may pack well
_HEADER = 1 << 16  # where the header ends, of any array that is plain
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Header:
    """What a .npy says about itself."""

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    is_fortran: bool
    offset: int  # bytes before the values

    @property
    def num_bytes(self) -> int:
        """That the values take."""
        return math.prod(self.shape) * self.dtype.itemsize


class Members:
    """The arrays of a .npz by name, none of them read yet; use it in a `with` statement.

    Raises:
        DataError: there is no such file, or it is no .npz; any damage that is met later.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = open_plain(path)
        except FileNotFoundError as error:
            raise DataError(
                f"{path}: there is no such file; pass the path of a .npz as root."
            ) from error
        except OSError as error:
            raise self._damage(error) from error
        try:
            self._refuse_single(self._file)
            self._zip = zipfile.ZipFile(self._file)
        except DataError:
            self._file.close()
            raise
        except Exception as error:  # a damaged zip fails in any way
            self._file.close()
            raise self._damage(error) from error
        self._size = path.stat().st_size
        infos = self._zip.infolist()
        self._counts = Counter(info.filename for info in infos)
        self._infos = {
            i.filename.removesuffix(".npy"): i for i in infos if i.filename.endswith(".npy")
        }

    def __contains__(self, name: str) -> bool:
        return name in self._infos

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._infos)

    def __enter__(self) -> Members:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._zip.close()
        self._file.close()

    def header(self, name: str) -> Header:
        """Shape and type of an array, if the file has the bytes for it."""
        info = self._infos[name]
        if self._counts[info.filename] > 1:
            raise DataError(f"{self._path}: {name} is in it twice.")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise self._damage(f"{name} is packed in a way that numpy.savez does not use")
        most = info.compress_size * _RATIO + _SLACK
        if info.file_size > most or info.compress_size > self._size:
            raise self._damage(
                f"{name} claims {info.file_size:,} bytes, more than its {info.compress_size:,} packed ones can hold"
            )
        try:
            with self._zip.open(info) as stream:
                header = _read_header(io.BytesIO(stream.read(_HEADER)), name)
        except (
            Exception
        ) as error:  # numpy parses it in two ways, which fail in many (TokenError, ...)
            raise self._damage(error) from error
        if header.offset + header.num_bytes != info.file_size:
            raise self._damage(
                f"{name} claims the shape {header.shape} of {header.dtype}, which takes {header.num_bytes:,} "
                f"bytes, and has {max(0, info.file_size - header.offset):,}"
            )
        return header

    def read(self, name: str) -> NDArray[np.generic]:
        """The array itself."""
        header = self.header(name)
        check_memory(header.num_bytes, f"{self._path}: {name}")
        values = np.empty(header.num_bytes, np.uint8)
        try:
            with self._zip.open(self._infos[name]) as stream:
                stream.read(header.offset)
                done = 0
                while block := stream.read(_BLOCK):  # to the end, where the checksum is compared
                    values[done : done + len(block)] = np.frombuffer(block, np.uint8)
                    done += len(block)
        except Exception as error:  # a damaged zip fails in any way
            raise self._damage(error) from error
        if done != header.num_bytes:
            raise self._damage(f"{name} has {done:,} of {header.num_bytes:,} bytes")
        array = values.view(header.dtype)
        if header.is_fortran:
            return array.reshape(header.shape[::-1]).transpose()
        return array.reshape(header.shape)

    def _refuse_single(self, file: BinaryIO) -> None:
        if file.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX:
            raise DataError(f"{self._path}: a single array; needed is a .npz, see numpy.savez.")
        file.seek(0)

    def _damage(self, what: object) -> DataError:
        return DataError(f"{self._path}: not a .npz of plain arrays, or damaged: {what}")


def _read_header(stream: BinaryIO, name: str) -> Header:
    version = npy.read_magic(stream)
    if version == (1, 0):
        shape, is_fortran, dtype = npy.read_array_header_1_0(stream)
    elif version == (2, 0):
        shape, is_fortran, dtype = npy.read_array_header_2_0(stream)
    else:
        raise ValueError(f"{name} is in version {version} of the format")
    if dtype.hasobject:
        raise ValueError(f"Object arrays are programs (pickles) and are not read: {name}")
    if dtype.itemsize == 0 or any(type(n) is not int or n < 0 for n in shape):
        raise ValueError(f"{name} has the shape {shape} of {dtype}")
    return Header(shape, dtype, is_fortran, stream.tell())
