"""Makes packages importable whose compiled parts need CUDA, with a CPU build of PyTorch.

The registry has torchvision and torchaudio for CUDA only; `./dev` installs them where only the runner looks (apart.txt). Their C++ operators for CPUs are in the same libraries, which
do not load without CUDA's symbols. Empty libraries with these symbols make them load; nothing on a CPU calls them.
"""

import ctypes
import importlib.util
import pathlib
import subprocess

_CUDA = ("libcudart.so.13", "libc10_cuda.so", "libtorch_cuda.so")
_VARIABLE = "CUDACachingAllocator9allocator"  # the other symbols are functions
_LIBRARIES = {"torchvision": "_C.so", "torchaudio": "lib/*.so"}


def load_empty_cuda(folder: pathlib.Path) -> None:
    """folder: where the empty libraries are made, if they are not there. Does nothing with a CUDA build of PyTorch."""
    import torch

    if torch.version.cuda:
        return
    asking = [library for library in _installed() if "libtorch_cuda" in _run("readelf", "-d", library)]
    if not asking:
        return
    _make(folder, asking, pathlib.Path(torch.__file__).parent / "lib")
    for name in _CUDA:
        ctypes.CDLL(str(folder / name), ctypes.RTLD_GLOBAL)


def _installed() -> list[pathlib.Path]:
    specs = {package: importlib.util.find_spec(package) for package in _LIBRARIES}
    return [
        library
        for package, spec in specs.items()
        if spec is not None and spec.origin is not None
        for library in pathlib.Path(spec.origin).parent.glob(_LIBRARIES[package])
    ]


def _make(folder: pathlib.Path, libraries: list[pathlib.Path], torch_libraries: pathlib.Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    known, wanted = set(), set()
    for name in ("c10", "torch", "torch_cpu", "torch_python"):
        known |= _symbols("--defined-only", torch_libraries / f"lib{name}.so")
    for library in libraries:
        wanted |= _symbols("--undefined-only", library)
    missing = [name for name in wanted - known if "cuda" in name.lower()]
    lines = [
        f"void *{name}[8];" if _VARIABLE in name else f"void *{name}(void) {{ return 0; }}" for name in sorted(missing)
    ]
    source, kept = "\n".join(lines), folder / "cuda.c"
    if kept.exists() and kept.read_text() == source:
        return
    for name in _CUDA:
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{name}", "-x", "c", "-", "-o", folder / name],
            input=source if name == _CUDA[-1] else "",
            text=True,
            check=True,
        )
    kept.write_text(source)


def _symbols(kind: str, library: pathlib.Path) -> set[str]:
    return {line.split()[-1].partition("@")[0] for line in _run("nm", "-D", kind, library).splitlines() if line}


def _run(*command: object) -> str:
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True).stdout
