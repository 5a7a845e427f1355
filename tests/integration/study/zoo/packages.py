"""Makes packages importable whose compiled parts ask for CUDA, beside a CPU build of PyTorch.

The registry has torchvision for CUDA only. Its C++ operators for CPUs are in the same library, which does not load
without CUDA's symbols. An empty library with these symbols makes it load; nothing on a CPU calls them.
"""

import ctypes
import importlib.util
import os
import pathlib
import subprocess
import sys

_CUDA = ("libcudart.so.13", "libc10_cuda.so", "libtorch_cuda.so")
_POINTER = "CUDACachingAllocator9allocator"  # a variable; the others are functions


def load_torchvision(folder: pathlib.Path) -> None:
    """folder: where the empty libraries are made, once. Does nothing where torchvision is absent or loads as it is."""
    import torch
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None or torch.version.cuda:
        return
    library = pathlib.Path(found.origin).parent / "_C.so"
    if not library.exists() or "libtorch_cuda" not in _run("readelf", "-d", library):
        return
    if not all((folder / name).exists() for name in _CUDA):
        _make(folder, library, pathlib.Path(torch.__file__).parent / "lib")
    for name in _CUDA:
        ctypes.CDLL(str(folder / name), ctypes.RTLD_GLOBAL)


def _make(folder: pathlib.Path, library: pathlib.Path, torch_libraries: pathlib.Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    known = set()
    for name in ("c10", "torch", "torch_cpu", "torch_python"):
        known |= _symbols("--defined-only", torch_libraries / f"lib{name}.so")
    missing = [name for name in _symbols("--undefined-only", library) - known if "cuda" in name.lower()]
    lines = [f"void *{name}[8];" if _POINTER in name else f"void *{name}(void) {{ return 0; }}" for name in sorted(missing)]
    for name in _CUDA:
        source = "\n".join(lines) if name == _CUDA[-1] else ""
        subprocess.run(["gcc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{name}", "-x", "c", "-", "-o", folder / name],
                       input=source, text=True, check=True)


def _symbols(kind: str, library: pathlib.Path) -> set[str]:
    return {line.split()[-1].partition("@")[0] for line in _run("nm", "-D", kind, library).splitlines() if line}


def _run(*command: object) -> str:
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True).stdout
