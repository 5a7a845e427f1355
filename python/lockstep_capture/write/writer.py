"""The capture file (docs/capture-file.md): HDF5 after a user block with length and SHA-256.

Knows nothing of models; gets tensors, names and numbers. Written under another name and renamed when complete.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import io
import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import h5py
import numpy as np
import torch

from ..errors import CaptureError
from ..model_state import as_real
from ..watch.kept_draws import packed
from .background import Background

MAGIC = b"LOCKSTEP-CAPTURE"
BLOCK_VERSION = 1
BLOCK_BYTES = 512
FORMAT_VERSION = 2
_TEXT = h5py.string_dtype("utf-8")
_I32 = np.iinfo(np.int32)


def escape(name: str) -> str:
    """A module path as the name of one HDF5 object."""
    return name.replace("%", "%25").replace("/", "%2F")


def _bfloat16() -> Any:
    """The type of bfloat16 in a file: h5py has a name for half precision alone."""
    kind = h5py.h5t.IEEE_F32LE.copy()
    sign, exponent, exponent_bits, fraction, fraction_bits = 15, 7, 8, 0, 7
    kind.set_fields(sign, exponent, exponent_bits, fraction, fraction_bits)
    kind.set_ebias(127)
    kind.set_precision(16)
    kind.set_offset(0)
    kind.set_size(2)
    return kind


def array_of(tensor: torch.Tensor, what: str, narrow: bool = False) -> np.ndarray:
    """float32 for floats of 32 bits or fewer, float64 for double, int32 for integers and booleans. narrow: float16 stays,
    bfloat16 is uint16, the codes."""
    tensor = as_real(tensor.detach().cpu())
    if narrow and tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(np.uint16)
    if narrow and tensor.dtype == torch.float16:
        return tensor.numpy()
    if tensor.dtype == torch.float64:
        return tensor.numpy()
    if tensor.dtype.is_floating_point:
        return tensor.float().numpy()
    wide = tensor.to(torch.int64).numpy()
    if wide.size and (wide.min() < _I32.min or wide.max() > _I32.max):
        raise CaptureError(f"{what}: holds integers from {wide.min()} to {wide.max()}, must fit into 32 bits")
    return wide.astype(np.int32)


class _Disk(io.RawIOBase):
    """The file that HDF5 writes to. It hides errors from HDF5, which cannot close a file on a full disk and then ends the
    process; `error` is the first one. After it nothing more is written."""

    def __init__(self, path: str):
        self._file = open(path, "w+b", buffering=0)
        self.error: OSError | None = None

    def _tried(self, body: Callable[[], Any]) -> None:
        if self.error is None:
            try:
                body()
            except OSError as error:
                self.error = error

    def write(self, data: Any) -> int:
        view, at = memoryview(data).cast("B"), self._file.tell()
        if self.error is None:

            def all_of_it() -> None:
                left = view
                while left:
                    left = left[self._file.write(left) :]

            self._tried(all_of_it)
        self._file.seek(at + len(view))
        return len(view)

    def readinto(self, into: Any) -> int:
        view = memoryview(into).cast("B")
        found = self._file.readinto(view) or 0
        view[found:] = bytes(len(view) - found)
        self._file.seek(len(view) - found, os.SEEK_CUR)
        return len(view)

    def seek(self, place: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(place, whence)

    def tell(self) -> int:
        return self._file.tell()

    def truncate(self, size: int | None = None) -> int:
        self._tried(lambda: self._file.truncate(size))
        return size or 0

    def flush(self) -> None:
        pass  # nothing is kept back

    def close(self) -> None:
        self._file.close()
        super().close()


class Writer:
    """Usage: put datasets and attributes, then finish(); or abandon().

    They are written in the background. An error is thrown by a later call, at the latest by finish(). narrow: tensors of
    16 bits take 16 bits.
    """

    def __init__(self, path: str, *, narrow: bool = False):
        self._narrow = narrow
        self._path, self._partial = os.fspath(path), f"{os.fspath(path)}.partial"
        with self._writing():
            self._disk = _Disk(self._partial)
            self._file = h5py.File(
                self._disk, "w", userblock_size=BLOCK_BYTES, track_order=False, libver=("v108", "v110")
            )
        self._background = Background()
        self.attributes(
            "",
            {
                "format": "lockstep-capture",
                "format_version": np.int32(FORMAT_VERSION),
                "created_utc": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
                "complete": np.uint8(0),
            },
        )

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
            if self._disk.error is not None:
                raise self._disk.error
        except (OSError, RuntimeError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise CaptureError(
                f"{self._path} could not be written, no file was left: {reason}. Is the disk "
                "full, or another capture writing there?"
            ) from error

    @property
    def is_in_background(self) -> bool:
        """Whether this is called from within a write."""
        return self._background.is_here

    def _later(self, job: Callable[[], None], size: int = 0) -> None:
        def tried() -> None:
            with self._writing():
                job()

        self._background.put(tried, size)

    def flush(self) -> None:
        self._later(lambda: self._file.flush())

    def attributes(self, group: str, values: Mapping[str, Any]) -> None:
        """Of a group, which is made, or of a dataset. Texts are UTF-8, booleans u8; numbers keep their numpy type, floats are f64."""

        def job() -> None:
            target: Any = self._file
            if group:
                target = self._file[group] if group in self._file else self._file.create_group(group)
            self._set(target, values)

        self._later(job)

    @staticmethod
    def _set(target: Any, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            if isinstance(value, bool):
                target.attrs[name] = np.uint8(value)
            elif isinstance(value, str):
                target.attrs.create(name, str(value), dtype=_TEXT)
            elif isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
                target.attrs.create(name, np.array(list(value), dtype=object), shape=(len(value),), dtype=_TEXT)
            else:
                target.attrs[name] = value

    def tensor(
        self,
        place: str,
        tensor: torch.Tensor,
        attributes: Mapping[str, Any] | None = None,
        *,
        packed: bool = False,
        owned: bool = False,
    ) -> None:
        """packed: shuffled and compressed, one chunk; for batches and the like. owned: nobody changes it any more; others
        are copied."""
        array = array_of(tensor, place, self._narrow)
        if not owned and tensor.numel() and array.ctypes.data == tensor.data_ptr():
            array = array.copy()
        options: dict[str, Any] = (
            dict(chunks=array.shape, shuffle=True, compression="gzip", compression_opts=1)
            if packed and array.size and array.ndim
            else {}
        )  # HDF5 stores a number without dimensions whole
        self._dataset(
            place, array, {"torch_dtype": str(tensor.dtype).removeprefix("torch."), **(attributes or {})}, options
        )

    def scalar(self, place: str, value: float) -> None:
        self._dataset(place, np.float64(value), {}, {})

    def array(self, place: str, array: np.ndarray, attributes: Mapping[str, Any] | None = None) -> None:
        """Which nobody changes any more."""
        self._dataset(place, array, attributes or {}, {})

    def _dataset(self, place: str, data: Any, attributes: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        def job() -> None:
            if isinstance(data, np.ndarray) and data.dtype == np.uint16:
                self._set(self._codes(place, data, bool(options)), attributes)
            else:
                self._set(self._file.create_dataset(place, data=data, track_times=False, **options), attributes)

        self._later(job, data.nbytes)

    def _codes(self, place: str, codes: np.ndarray, packed: bool) -> Any:
        """A dataset of bfloat16."""
        kind, space = _bfloat16(), h5py.h5s.create_simple(codes.shape)
        settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        settings.set_obj_track_times(False)
        if packed:
            settings.set_chunk(codes.shape)
            settings.set_shuffle()
            settings.set_deflate(1)
        links = h5py.h5p.create(h5py.h5p.LINK_CREATE)
        links.set_create_intermediate_group(True)
        made = h5py.h5d.create(self._file.id, place.encode(), kind, space, settings, links)
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, np.ascontiguousarray(codes), mtype=kind)
        return h5py.Dataset(made)

    def bits(self, place: str, mask: torch.Tensor, attributes: Mapping[str, Any] | None = None) -> None:
        """numpy.packbits of a mask, with its shape."""
        self.array(place, packed(mask), {"shape": np.array(tuple(mask.shape), dtype=np.int64), **(attributes or {})})

    def json(self, place: str, value: Any, attributes: Mapping[str, Any] | None = None) -> None:
        text = value if isinstance(value, str) else json.dumps(value)
        self.array(place, np.frombuffer(text.encode(), dtype=np.uint8), attributes)

    def optimizer_state(self, place: str, states: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        self.attributes(place, {})
        for path, state in states.items():
            for key, value in state.items():
                where = f"{place}/{escape(path)}/{key}"
                if key == "step":
                    self.scalar(where, float(value))
                else:
                    self.tensor(where, value, owned=True)

    def tensors(self, place: str, values: Mapping[str, torch.Tensor], *, owned: bool = False) -> None:
        self.attributes(place, {})
        for path, tensor in values.items():
            self.tensor(f"{place}/{escape(path)}", tensor, owned=owned)

    def finish(self) -> None:
        """Closes the data, writes the user block last, and puts the file into its place.

        No fsync, which would wait for other programs' writes: after a power cut the checksum reveals a torn file.
        """
        self._background.wait()
        with self._writing():
            self._file.attrs["complete"] = np.uint8(1)
            self._file.close()
            self._disk.close()
            if self._disk.error is not None:
                raise self._disk.error
            digest = hashlib.sha256()
            with open(self._partial, "r+b") as file:
                file.seek(BLOCK_BYTES)
                part = memoryview(bytearray(1 << 20))
                while count := file.readinto(part):
                    digest.update(part[:count])
                length = file.tell() - BLOCK_BYTES
                block = MAGIC + struct.pack("<IIQ", BLOCK_VERSION, BLOCK_BYTES, length) + digest.digest()
                file.seek(0)
                file.write(block.ljust(BLOCK_BYTES, b"\0"))
            os.replace(self._partial, self._path)

    def abandon(self) -> None:
        """Removes the unfinished file."""
        self._background.drop()
        with contextlib.suppress(Exception):
            self._file.close()
        self._disk.close()
        with contextlib.suppress(FileNotFoundError):
            os.remove(self._partial)
