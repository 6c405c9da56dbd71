"""A device beside the CPU, made of CPU memory, for machines without a GPU: it computes real values and is as strict.

Registered as PyTorch's extension device under the name "far". Tensors there carry a CPU tensor; every operation checks
that its tensors are there too, as CUDA does, and notes each wait for the host: what `torch.cuda.set_sync_debug_mode`
would report on a GPU. Importing this module registers the device for the whole process, so tests run it in one of their
own.
"""

import contextlib

import torch
import torch._dynamo  # knows the class that `far_away` takes the place of
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend


class Backend(_DummyBackendModule):
    """What PyTorch asks of the device's module."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


_setup_privateuseone_for_python_backend("far", backend_module=Backend())
LIBRARY = torch.library.Library("_", "IMPL")
LIBRARY.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")  # autocast changes nothing
FAR = torch.device("far", 0)
aten = torch.ops.aten
REAL_GENERATOR = torch.Generator

WAITS = {  # their result, or its shape, is read by the host
    getattr(aten, name)
    for name in (
        *("_local_scalar_dense", "equal", "is_nonzero", "nonzero", "masked_select", "bincount"),
        *("_unique2", "unique_consecutive", "unique_dim"),
    )
}
INDEXED = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index}


class Wait(RuntimeError):
    """The host waited for the device where it must not."""


class Mixed(RuntimeError):
    """Tensors of two devices met in one operation."""


class Far(torch.Tensor):
    """A tensor that says it is far, and keeps its values near."""

    @staticmethod
    def __new__(cls, near: torch.Tensor):
        return torch.Tensor._make_wrapper_subclass(
            cls, near.shape, strides=near.stride(), storage_offset=near.storage_offset(), dtype=near.dtype, device=FAR
        )

    def __init__(self, near: torch.Tensor):
        self.near = near

    def __repr__(self):
        return f"Far({self.near!r})"

    def __reduce_ex__(self, protocol):  # a checkpoint keeps the values
        return self.near.__reduce_ex__(protocol)

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return dispatch(func, args, kwargs or {})


class Device(TorchDispatchMode):
    """While it is entered, tensors can be made on "far"; `waits` names the waits so far, `strict` forbids them."""

    def __init__(self):
        super().__init__()
        self.waits, self.strict = [], False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return dispatch(func, args, kwargs or {})

    @contextlib.contextmanager
    def no_waits(self):
        self.strict = True
        try:
            yield
        finally:
            self.strict = False

    def wait(self, what: str) -> None:
        self.waits.append(what)
        if self.strict:
            raise Wait(f"{what} waits for the device")


device = Device()


def is_far(x: object) -> bool:
    return isinstance(x, (torch.device, str)) and torch.device(x).type == "far"


class Calls(TorchFunctionMode):
    """What must be seen before PyTorch's dispatcher: generators, numbers that become tensors, lists."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.Tensor.tolist and isinstance(args[0], Far):
            device.wait("tolist")
            return args[0].near.tolist()
        if func in (torch.tensor, torch.as_tensor) and is_far(kwargs.get("device")) and not isinstance(args[0], Far):
            device.wait(func.__name__)
            return Far(func(*args, **{**kwargs, "device": "cpu"}))
        result = func(*args, **kwargs)
        rng = next((x for x in [*args, *kwargs.values()] if isinstance(x, REAL_GENERATOR)), None)
        if rng is not None and isinstance(result, torch.Tensor):
            if isinstance(result, Far) != isinstance(rng, FarGenerator):
                raise Mixed(f"{func}: its generator is on another device than its result")
        return result


def check_tensors(func, args: tuple, kwargs: dict) -> None:
    """All far, but for numbers of the CPU; an index of the CPU is copied, which waits."""
    near = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and not isinstance(t, Far)]
    if func.overloadpacket in INDEXED:
        if len(args) > 2 and not isinstance(args[2], Far) and args[2].dim():
            raise Mixed(f"{func}: values of the CPU")
        if any(t.dim() for t in near):
            device.wait(f"{func} with an index of the CPU")
    elif any(t.dim() for t in near):
        shapes = [(tuple(t.shape), str(t.device)) for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        raise Mixed(f"{func}: tensors of two devices, {shapes}")


def copied(func, args: tuple, kwargs: dict):
    """Between devices, or on one."""
    source = args[1] if func is aten.copy_.default else args[0]
    if func is aten.copy_.default:
        here, there, later = isinstance(source, Far), isinstance(args[0], Far), len(args) > 2 and args[2]
    else:
        here, later = isinstance(source, Far), kwargs.get("non_blocking", False)
        there = is_far(kwargs["device"]) if kwargs.get("device") is not None else here
    if here and not there or (there and not here and not later and source.dim()):
        device.wait(f"{func}, {'from' if here else 'to'} the device, shape {tuple(source.shape)}")
    if func is aten.copy_.default:
        func(*(a.near if isinstance(a, Far) else a for a in args))
        return args[0]
    if kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    new = func(*tree_map(nearer, args), **kwargs)
    return Far(new) if there else new


def nearer(x: object) -> object:
    return x.near if isinstance(x, Far) else torch.device("cpu") if isinstance(x, torch.device) else x


def dispatch(func, args: tuple, kwargs: dict):
    """Run one operation on what is near, and say where its result is."""
    given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Far)]
    far = bool(given) or is_far(kwargs.get("device"))
    if not far:
        return func(*args, **kwargs)
    if func in (aten._to_copy.default, aten.copy_.default):
        return copied(func, args, kwargs)
    check_tensors(func, args, kwargs)
    if func.overloadpacket in WAITS:
        device.wait(str(func))
    if func.overloadpacket is aten.repeat_interleave and kwargs.get("output_size") is None:
        device.wait(f"{func} without output_size")
    if func.overloadpacket in INDEXED and any(t is not None and t.dtype == torch.bool for t in args[1]):
        device.wait(f"{func} by a mask")
    known = {id(x.near): x for x in given}
    out = func(*tree_map(nearer, args), **tree_map(nearer, kwargs))
    if func is aten._pin_memory.default or func.overloadpacket is aten._local_scalar_dense:
        return out

    def farther(x):
        return known.get(id(x)) if id(x) in known else Far(x) if isinstance(x, torch.Tensor) else x

    return tree_map(farther, out)


class FarGenerator(REAL_GENERATOR):
    """Draws numbers for the device."""

    device = FAR


class AnyGenerator(REAL_GENERATOR):
    """`torch.Generator` for every device."""

    def __new__(cls, device="cpu"):
        return FarGenerator() if is_far(device) else REAL_GENERATOR(device)


@contextlib.contextmanager
def far_away():
    """Enter the device: tensors, generators and modules can go to "far"; they call themselves CUDA's where asked."""
    plain = torch.Tensor.is_cuda
    torch.Generator = AnyGenerator
    torch.Tensor.is_cuda = property(lambda t: t.device.type == "far")
    try:
        with Calls(), device:
            yield device
    finally:
        torch.Generator, torch.Tensor.is_cuda = REAL_GENERATOR, plain
