"""Every private or moved name of PyTorch that this package uses, and the versions of PyTorch that it was tested with.

A private name may go with any version. The package then still imports, and a capture that needs the name is refused with
a message that says so. Names that PyTorch documents are used where they are needed. `./dev study torch-versions` tries
the versions; its table is docs/study/torch-versions.md.
"""

from __future__ import annotations

import functools
import pkgutil
import warnings
from dataclasses import dataclass
from typing import Any

import torch

from .errors import CaptureError

OLDEST, NEWEST = (2, 6), (2, 14)  # both tested, and 2.7 and 2.13


def _numbers(version: str) -> tuple[int, ...]:
    """(2, 14) of "2.14.1+cpu" and of "2.14.0a0"."""
    return tuple(int(part) for part in version.split(".")[:2])


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def check_oldest(version: str) -> None:
    """Throws: ImportError for a PyTorch that lacks what captures need."""
    if _numbers(version) < OLDEST:
        raise ImportError(
            f"lockstep_capture: torch is {version}, must be at least {_dotted(OLDEST)}: "
            f"pip install 'torch>={_dotted(OLDEST)}'"
        )


@functools.cache
def warn_if_newer(version: str) -> None:
    """Once, of a PyTorch that was not tested."""
    if _numbers(version) > NEWEST:
        warnings.warn(
            f"lockstep_capture: torch is {version}, the newest version tested is {_dotted(NEWEST)}. Run `lockstep verify` "
            f"on the capture: it compares the capture with PyTorch's own numbers",
            stacklevel=5,
        )


check_oldest(torch.__version__)


@dataclass(frozen=True)
class Private:
    """use: what a capture cannot do in a version of PyTorch without this name. Calls pass to what has the name."""

    name: str
    use: str

    def get(self) -> Any:
        """Throws: CaptureError where there is none."""
        try:
            return pkgutil.resolve_name(self.name)
        except (AttributeError, ImportError):
            raise CaptureError(
                f"torch {torch.__version__} has no {self.name}, which {self.use} needs: "
                f"pip install 'torch>={_dotted(OLDEST)},<{NEWEST[0]}.{NEWEST[1] + 1}'"
            ) from None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _found(self)(*args, **kwargs)

    def place(self) -> tuple[Any, str]:
        """The object that has it and the name there, for those who replace it for a while."""
        self.get()
        owner, _, name = self.name.rpartition(".")
        return pkgutil.resolve_name(owner), name

    def as_base(self) -> Any:
        """The class, to be inherited from. Where there is none, one that cannot be made."""
        try:
            return self.get()
        except CaptureError:
            return type("Missing", (), {"__new__": lambda *args, **kwargs: self.get()})


@functools.cache
def _found(row: Private) -> Any:
    return row.get()


_TRACE = "tracing a forward pass"
_CLIPPING = "watching clip_grad_norm_ and clip_grad_value_"

# The dispatcher. All rows: from PyTorch 2.6 or before, to 2.14.
ENABLE_DISPATCHER = Private("torch._dispatch.python.enable_python_dispatcher", _TRACE)
NO_DISPATCHER = Private("torch._dispatch.python.no_python_dispatcher", _TRACE)
DISPATCH_KEY = Private("torch._C.DispatchKey", _TRACE)
DISPATCH_MODE = Private("torch.utils._python_dispatch.TorchDispatchMode", _TRACE)
SCHEMA_CHECK_MODE = Private("torch._subclasses.schema_check_mode.SchemaCheckMode", _TRACE)
DISABLE_MODES = Private("torch.utils._python_dispatch._disable_current_modes", "watching a loop")
CURRENT_MODE = Private("torch.utils._python_dispatch._get_current_dispatch_mode", "watching a loop")
POP_MODE = Private("torch.utils._python_dispatch._pop_mode_temporarily", "watching a loop")
NO_TORCH_FUNCTION = Private("torch._C.DisableTorchFunction", "a monitor")
HAS_KERNEL = Private("torch._C._dispatch_has_kernel_for_dispatch_key", _TRACE)
IS_OF_FUNCTORCH = Private("torch._C._functorch.is_functorch_wrapped_tensor", _TRACE)
IS_BATCHED = Private("torch._C._functorch.is_legacy_batchedtensor", _TRACE)
TRANSFORMS = Private("torch._C._functorch.get_interpreter_stack", _TRACE)
VMAP = Private("torch._C._functorch.TransformType.Vmap", _TRACE)
IS_EXCLUDED = Private("torch._C._dispatch_tls_is_dispatch_key_excluded", _TRACE)
INCLUDED = Private("torch._C._dispatch_tls_local_include_set", _TRACE)
EXCLUDED = Private("torch._C._dispatch_tls_local_exclude_set", _TRACE)
KEYS_OF = Private("torch._C._dispatch_keys", _TRACE)
KEYS_AFTER = Private("torch._C._dispatch_keyset_full_after", _TRACE)
GRAD_AND_VALUE = Private("torch._functorch.eager_transforms.grad_and_value_impl", _TRACE)
# Batches
LEAVES = Private("torch.utils._pytree.tree_leaves", _TRACE)
MAP = Private("torch.utils._pytree.tree_map", _TRACE)
MAP_ONLY = Private("torch.utils._pytree.tree_map_only", _TRACE)
FLATTEN_WITH_PATH = Private("torch.utils._pytree.tree_flatten_with_path", _TRACE)
FLATTEN = Private("torch.utils._pytree.tree_flatten", _TRACE)
UNFLATTEN = Private("torch.utils._pytree.tree_unflatten", _TRACE)
KEYSTR = Private("torch.utils._pytree.keystr", _TRACE)
# torch.autograd. Function.apply is Python in some versions and C in others; all look up setup_context and forward.
FUNCTION_META = Private("torch.autograd.function.FunctionMeta", "recording a torch.autograd.Function")
CHECKPOINT = Private("torch.utils.checkpoint.CheckpointFunction", "recording a torch.autograd.Function")
ENGINE = Private("torch.autograd._engine_run_backward", "recording gradients in a forward pass")
RUNNING_BACKWARD = Private(
    "torch._C._current_graph_task_id", "recording parts under activation checkpointing"
)  # -1: none
LOCAL_SHAPE = Private(
    "torch.distributed.tensor._utils.compute_local_shape_and_global_offset", "recording sharded parts"
)
CUSTOM_OPS = Private("torch._library.custom_ops.OPDEFS", "recording a torch.library.custom_op")
# Which callback torch.compile runs code with
STANCE = Private("torch._dynamo.eval_frame._callback_from_stance", "a step with compiled code")
# What the functions of clipping call, however those were imported
TOTAL_NORM = Private("torch.nn.utils.clip_grad._get_total_norm", _CLIPPING)
CLIP = Private("torch.nn.utils.clip_grad._clip_grads_with_norm_", _CLIPPING)
GROUP_TENSORS = Private("torch.nn.utils.clip_grad._group_tensors_by_device_and_dtype", _CLIPPING)
# Hooks of all optimizers
ALL_PRE_HOOKS = Private("torch.optim.optimizer._global_optimizer_pre_hooks", "taking a step again")
ALL_POST_HOOKS = Private("torch.optim.optimizer._global_optimizer_post_hooks", "taking a step again")
BATCH_NORM = Private("torch.nn.modules.batchnorm._BatchNorm", "batch norm with momentum=None")

ROWS = [value for value in globals().copy().values() if isinstance(value, Private)]

_BACKENDS: Any = torch.backends
PRECISION_BY_UNIT = hasattr(_BACKENDS.cuda.matmul, "fp32_precision")  # from 2.9; the older switches may not be mixed in


def scale_tensor(scaler: Any) -> Any:
    """A GradScaler's loss scale on its device, which get_scale() waits for; None before its first step."""
    return getattr(scaler, "_scale", None)


def op_schema(op: Any) -> Any:
    """name, arguments, is_mutable."""
    return op._schema


def overload_name(op: Any) -> str:
    return str(op._overloadname)


def autocast_block(block: torch.autocast) -> tuple[bool, torch.dtype | None, str, bool]:
    """enabled, dtype, device and cache_enabled."""
    return bool(block._enabled), block.fast_dtype, block.device, bool(block._cache_enabled)


DispatchMode = DISPATCH_MODE.as_base()


class PreDispatchMode(SCHEMA_CHECK_MODE.as_base()):  # type: ignore[misc]
    """Sees ops above autocast and autograd. The dispatcher takes no other class at its pre-dispatch key."""

    def __init__(self) -> None:
        DispatchMode.__init__(self, DISPATCH_KEY.get().PreDispatch)
