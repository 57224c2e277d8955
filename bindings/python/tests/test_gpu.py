"""Arrays in the memory of a GPU, on the driver for tests (or on one that CONSONANCE_TEST_DRIVER
names). Each test runs in a process of its own. A stream begins its work late, and does none of it
earlier than somebody waits for it."""

import ctypes
import math
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import consonance as cs

_TARGET = Path(os.environ.get("CARGO_TARGET_DIR", Path(__file__).parents[3] / "target"))
_LIBRARIES = [_TARGET / profile / "libconsonance_fake_driver.so" for profile in ("debug", "release")]
_DRIVER = os.environ.get("CONSONANCE_TEST_DRIVER") or next((str(path) for path in _LIBRARIES if path.exists()), None)

_TESTS = []


def on_a_driver(plan):
    """Makes a test that runs in a process of its own, on a driver with this plan."""

    def decorate(function):
        @pytest.mark.skipif(_DRIVER is None, reason="cargo build -p consonance-fake-driver makes the driver")
        def test():
            if os.environ.get("CONSONANCE_CUDA_DRIVER") == _DRIVER:
                return function()
            environment = dict(os.environ, CONSONANCE_CUDA_DRIVER=_DRIVER, CONSONANCE_FAKE_DRIVER=plan)
            command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-p", "no:xdist"]
            test = f"{__file__}::{function.__name__}"
            done = subprocess.run([*command, test], env=environment, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr

        test.__name__ = function.__name__
        return test

    return decorate


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_kind", ctypes.c_int),
        ("device", ctypes.c_int32),
        ("dimensions", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32 * 2),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype, _capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Library:
    """Another library on a GPU: a stream and arrays of its own."""

    def __init__(self, device=0):
        self.device, self.driver = device, ctypes.CDLL(_DRIVER)
        self.context = ctypes.c_void_p()
        assert self.driver.cuInit(0) == 0
        assert self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), device) == 0
        self.stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(self.stream), 1)

    def call(self, name, *args):
        code = self.code(name, *args)
        assert code == 0, f"{name} failed with code {code}"

    def code(self, name, *args):
        """Calls a function in the context of the device. Returns its code."""
        assert self.driver.cuCtxPushCurrent_v2(self.context) == 0
        code = getattr(self.driver, name)(*args)
        assert self.driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p())) == 0
        return code

    def alloc(self, bytes):
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(bytes, 1)))
        return address

    def pinned(self, bytes):
        memory = ctypes.c_void_p()
        self.call("cuMemAllocHost_v2", ctypes.byref(memory), ctypes.c_size_t(max(bytes, 1)))
        return memory

    def let_wait(self, stream):
        """Lets a stream wait for the work that the library's has now."""
        event = ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(event), 2)
        self.call("cuEventRecord", event, self.stream)
        self.call("cuStreamWaitEvent", ctypes.c_void_p(stream), event, 0)
        self.call("cuEventDestroy_v2", event)

    def array(self, values, kind=None, **options):
        return (kind or DLPack)(self, np.ascontiguousarray(values), **options)


class Memory:
    """An array of a library, which its stream writes late."""

    def __init__(self, library, values, strides=None, is_read_only=False):
        self.library, self.like, self.shape = library, values, values.shape
        self.strides, self.is_read_only = strides, is_read_only
        self.address = library.alloc(values.nbytes)
        self.pinned = library.pinned(values.nbytes)
        ctypes.memmove(self.pinned, values.ctypes.data, values.nbytes)
        self.call("cuMemcpyHtoDAsync_v2", self.address, self.pinned, ctypes.c_size_t(values.nbytes))

    def call(self, name, *args):
        self.library.call(name, *args, self.library.stream)

    def numpy(self):
        """Returns the values, after the work of the library's stream and of no other."""
        values = np.empty_like(self.like)
        self.call("cuMemcpyDtoHAsync_v2", self.pinned, self.address, ctypes.c_size_t(values.nbytes))
        while code := self.library.code("cuStreamQuery", self.library.stream):
            assert code == 600, f"the stream's work failed with code {code}"
        ctypes.memmove(values.ctypes.data, self.pinned, values.nbytes)
        return values


class DLPack(Memory):
    """An array that offers DLPack, with the streams that it was asked for."""

    def __dlpack_device__(self):
        return (2, self.library.device)

    def __dlpack__(self, *, stream=None, max_version=None):
        assert stream is not None and stream > 2 and max_version == (1, 0)
        self.library.let_wait(stream)
        count = len(self.shape)
        self.exported = _Versioned(flags=1 if self.is_read_only else 0)
        self.exported.version[0] = 1
        tensor = self.exported.tensor
        tensor.data, tensor.device_kind, tensor.device = self.address.value, 2, self.library.device
        tensor.code = {"i": 0, "u": 1, "f": 2}[self.like.dtype.kind]
        tensor.dimensions, tensor.bits, tensor.lanes = count, 8 * self.like.itemsize, 1
        tensor.shape = (ctypes.c_int64 * count)(*self.shape)
        if self.strides:
            tensor.strides = (ctypes.c_int64 * count)(*self.strides)
        return _capsule(ctypes.addressof(self.exported), b"dltensor_versioned", None)


class Standard(DLPack):
    """An array of a library with the standard's functions, whose new arrays lie in host memory."""

    def __array_namespace__(self):
        return np


class Interface(Memory):
    """An array with CUDA's interface, whose stream says when it is ready."""

    @property
    def __cuda_array_interface__(self):
        return {
            "shape": self.shape,
            "typestr": self.like.dtype.str,
            "data": (self.address.value, self.is_read_only),
            "strides": self.strides,
            "stream": self.library.stream.value,
            "version": 3,
        }


def values(rank, *shape):
    return (1e7 / (1 + np.arange(math.prod(shape)) + 7 * rank)).astype(np.float32).reshape(shape)


def calls(comm, make):
    """Makes each call. Returns what the rank has after each."""
    own = values(comm.rank, 4, 3)
    zeros = lambda *shape: make(np.zeros(shape, np.float32))
    results = [
        comm.all_reduce(make(own), "sum", out=zeros(4, 3)),
        comm.all_reduce(data := make(own), "max", out=data),
        comm.broadcast(make(own), root=1),
        comm.reduce_scatter(make(own), out=zeros(2, 3)),
        comm.all_gather(make(own), out=zeros(8, 3)),
        comm.all_to_all(make(own), out=zeros(4, 3)),
        comm.gather(make(own), root=1, out=zeros(8, 3) if comm.rank == 1 else None),
        comm.scatter(make(own) if comm.rank == 0 else None, out=zeros(2, 3)),
        comm.reduce(make(own), out=zeros(4, 3) if comm.rank == 0 else None),
    ]
    request = comm.all_reduce(make(own), "mean", out=zeros(4, 3), async_op=True)
    assert request.wait()
    results.append(request.result)
    results += comm.all_reduce_coalesced([make(own), make(own)], out=[zeros(4, 3), zeros(4, 3)])
    return [None if result is None else result.numpy() if hasattr(result, "library") else result for result in results]


def assert_same(found, expected):
    for rank, (found, expected) in enumerate(zip(found, expected, strict=True)):
        for call, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert (one is None) == (other is None), (rank, call)
            assert one is None or one.tobytes() == other.tobytes(), (rank, call)


@on_a_driver("delay=3")
def test_calls_have_the_bits_of_the_host():
    def on_gpu(comm, kind):
        library = Library()
        return calls(comm, lambda array: library.array(array, kind))

    expected = cs.run(2, lambda comm: calls(comm, np.array))
    for kind in (DLPack, Interface):
        assert_same(cs.run(2, on_gpu, kind, device="cuda:0"), expected)


@on_a_driver("devices=2 delay=3")
def test_ranks_on_two_gpus_and_the_host_have_its_bits():
    id = cs.UniqueId()
    results = [None] * 3

    def work(rank):
        with cs.Communicator(id, rank, 3, device=["cuda:1", None, "cuda:0"][rank], timeout=20) as comm:
            library = Library([1, None, 0][rank]) if rank != 1 else None
            data = values(rank, 5)
            array = library.array(data) if library else data
            comm.all_reduce(array, out=array)
            results[rank] = [array.numpy() if library else array]

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert_same(results, cs.run(3, lambda comm: [comm.all_reduce(values(comm.rank, 5))]))


@on_a_driver("")
def test_wrong_arrays_are_refused_on_all_ranks():
    def work(comm):
        library = Library()
        right = library.array(values(comm.rank, 4))
        before = right.numpy()
        freed = library.array(values(comm.rank, 4))
        freed.numpy()
        library.call("cuMemFree_v2", freed.address)
        host = np.zeros(4, np.float32)
        on_host = library.array(values(0, 4))
        on_host.address = ctypes.c_uint64(host.ctypes.data)
        short = library.array(values(0, 4))
        short.address = ctypes.c_uint64(short.address.value + 4)
        for array, expected in [
            (freed, "no memory that the driver knows"),
            (on_host, "no memory that the driver knows"),
            (short, "12 bytes"),
            (library.array(values(0, 4), strides=(2,)), "elements that follow each other"),
            (library.array(values(0, 4), is_read_only=True), "an array that can be written, found one that is read-only"),
            (library.array(values(0, 3)), "out of replica 0: expected 4 elements, found 3"),
        ]:
            error, match = (ValueError, expected) if comm.rank == 0 else (cs.MismatchError, "replica 0")
            with pytest.raises(error, match=match):
                comm.all_reduce(right, out=array if comm.rank == 0 else right)
        for kind in (DLPack, Standard):
            array = library.array(values(0, 4), kind)
            error, match = (ValueError, "no new one") if comm.rank == 0 else (cs.MismatchError, "replica 0")
            with pytest.raises(error, match=match):
                comm.all_reduce(array, out=None if comm.rank == 0 else right)
        with pytest.raises(ValueError, match="memory of host"):
            comm.all_reduce_exact(right, out=right)
        with pytest.raises(ValueError):
            comm.send(right, 1 - comm.rank)
        assert right.numpy().tobytes() == before.tobytes()
        return [comm.all_reduce(right, out=right).numpy()]

    expected = cs.run(2, lambda comm: [comm.all_reduce(values(comm.rank, 4))])
    assert_same(cs.run(2, work, device="cuda:0"), expected)


@on_a_driver("devices=2")
def test_arrays_on_a_gpu_without_a_communicator_on_it_are_refused():
    library, second = Library(), Library(1)
    with pytest.raises(ValueError, match="an array in host memory, found cuda:0"):
        cs.threads(1)[0].all_reduce(library.array(values(0, 4)))
    comm = cs.threads(1, device="gpu:0")[0]
    with pytest.raises(ValueError, match="an array in host memory, found cuda:1"):
        comm.all_reduce(second.array(values(0, 4)))
    # Another communicator is on it.
    array = Library().array(values(0, 4))
    with pytest.raises(ValueError, match="memory that this communicator's engine reaches, found memory of cuda:0"):
        cs.threads(1)[0].all_reduce(array, out=array)
    for make in (cs.threads, lambda size, device: cs.Communicator(cs.UniqueId(), 0, size, device=device)):
        with pytest.raises(ValueError, match="cuda:0 to cuda:1, found .cuda:7"):
            make(1, device="cuda:7")


@on_a_driver("devices=2")
def test_a_stream_of_another_gpu_is_refused():
    comm = cs.threads(1, device="cuda:0")[0]
    array, other = Library(0).array(values(0, 4), Interface), Library(1)
    array.library.stream, array.numpy = other.stream, None
    with pytest.raises(ValueError, match="a stream of cuda:0 in __cuda_array_interface__"):
        comm.all_reduce(array, out=array)
