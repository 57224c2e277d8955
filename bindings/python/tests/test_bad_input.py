"""What is wrong gets an error that says so, on every rank, and nothing is written."""

import multiprocessing
import os
import pickle
from datetime import timedelta

import numpy as np
import pytest

import consonance as cs
from consonance._native import refuse


def both(first, second):
    """Runs a function on each of two ranks. Returns what each raised."""

    def rank(comm):
        try:
            (first, second)[comm.rank](comm)
        except Exception as error:
            return error
        return None

    return cs.run(2, rank)


ones = np.ones(4)
DIFFERENT = [
    ("call", lambda c: c.all_reduce(ones.copy()), lambda c: c.barrier(), "call", "all_reduce", "barrier"),
    ("op", lambda c: c.all_reduce(ones.copy()), lambda c: c.all_reduce(ones.copy(), "max"), "op", "sum", "max"),
    ("count", lambda c: c.all_reduce(np.ones(4)), lambda c: c.all_reduce(np.ones(5)), "count", "4", "5"),
    ("dtype", lambda c: c.all_reduce(np.ones(4)), lambda c: c.all_reduce(np.ones(4, "f")), "dtype", "f64", "f32"),
    ("root", lambda c: c.broadcast(np.ones(4)), lambda c: c.broadcast(np.ones(4), root=1), "root", "0", "1"),
    ("complex", lambda c: c.broadcast(np.ones(4)), lambda c: c.broadcast(np.ones(2, "D")), "type", "nothing", "c128"),
]


@pytest.mark.parametrize("what,first,second,argument,expected,found", DIFFERENT, ids=[row[0] for row in DIFFERENT])
def test_a_difference_between_ranks_is_a_mismatch_on_all(what, first, second, argument, expected, found):
    for error in both(first, second):
        assert isinstance(error, cs.MismatchError)
        assert (error.replica, error.argument, error.expected, error.found) == (1, argument, expected, found)


def test_a_complex_message_does_not_match_twice_as_many_reals():
    errors = both(lambda c: c.send(np.ones(2000, "F"), 1), lambda c: c.recv(np.ones(4000, "f"), 0))
    for error in errors:
        assert isinstance(error, cs.MismatchError)
        assert (error.replica, error.expected, error.found) == (0, "f32", "c64")


def test_a_float8_message_matches_neither_bytes_nor_another_float8():
    ml_dtypes = pytest.importorskip("ml_dtypes")

    def like(name):
        return np.zeros(5000, name if name == "u1" else getattr(ml_dtypes, name))

    for sent, expected in [("float8_e5m2", "u1"), ("u1", "float8_e4m3fn"), ("float8_e5m2", "float8_e4m3fn")]:
        errors = both(lambda c: c.send(like(sent), 1), lambda c: c.recv(like(expected), 0))
        told = [name.replace("u1", "u8") for name in (expected, sent)]
        assert [[error.expected, error.found] for error in errors] == [told, told]


read_only = np.ones(4)
read_only.flags.writeable = False
INVALID = [
    (lambda c: c.all_reduce([1.0, "x"]), TypeError, "data: expected a NumPy array"),
    (lambda c: c.all_reduce([1.0, 2.0]), TypeError, "data: expected a NumPy array.*found float in a list"),
    (lambda c: c.all_reduce(3.0), TypeError, "found float"),
    (lambda c: c.all_reduce(np.ma.array(ones)), TypeError, "an array without a mask.*found a masked array"),
    (lambda c: c.broadcast(np.zeros(2, "M8[s]")), TypeError, r"others move as bytes, by view\('u1'\)"),
    (lambda c: c.all_reduce(np.array(["a"])), TypeError, "found <U1"),
    (lambda c: c.all_reduce(np.ones(4, ">f8")), TypeError, "found >f8"),
    (lambda c: c.all_reduce(ones.copy(), "avg"), ValueError, 'op: .*expected one of sum, mean, .*found "avg"'),
    (lambda c: c.all_reduce(np.ones(4, bool), "mean"), ValueError, "any operation but mean"),
    (lambda c: c.all_reduce(np.ones(4, "F"), "max"), ValueError, "sum or mean, for complex numbers"),
    (lambda c: c.all_reduce(ones.copy(), "and"), ValueError, "all_reduce: op"),
    (lambda c: c.all_reduce(read_only, out=read_only), ValueError, "an array that can be written, found one that is read-only"),
    (lambda c: c.all_reduce(ones, out=np.broadcast_to(1.0, 4)), ValueError, "read-only"),
    (
        lambda c: c.all_reduce(ones, out=np.lib.stride_tricks.as_strided(np.ones(4), (2, 2), (8, 8))),
        ValueError,
        "overlaps in itself",
    ),
    (lambda c: c.all_reduce(ones, out=np.ones(5)), ValueError, "expected 4 elements, found 5"),
    (lambda c: c.all_reduce(ones, out=np.ones(4, "f")), ValueError, "out.*expected elements of f64.*found f32"),
    (lambda c: c.broadcast(ones.copy(), root=2), ValueError, "root.*a rank below 2, found 2"),
    (lambda c: c.broadcast(ones.copy(), root=-1), ValueError, "a rank below 2, found -1"),
    (lambda c: c.broadcast(ones.copy(), root="a"), TypeError, "root.*a rank, found 'a'"),
    (lambda c: c.gather(ones, root=2**63, out=np.ones(8)), ValueError, "root.*a rank, found 9223372036854775808"),
    (lambda c: c.reduce_scatter(np.ones(5)), ValueError, "reduce_scatter: data"),
    (lambda c: c.all_gather(ones, out=np.ones(8), counts=[4]), ValueError, "a count for each of 2 ranks, found 1"),
    (lambda c: c.scatter(None, out=ones.copy(), root=c.rank), ValueError, "an array on the root, found None"),
    (lambda c: c.all_gather(ones, out=np.ones(7)), ValueError, "all_gather: out of replica 0: expected 8 elements, found 7 elements"),
    (lambda c: c.all_gather([ones, ones]), ValueError, "out: expected an array, as data is a list, found None"),
    (lambda c: c.all_gather(np.ones((2, 2)), counts=[3, 5]), ValueError, "counts.*multiples of the 2 elements of a row"),
    (lambda c: c.all_gather(ones, counts=[4]), ValueError, "a count for each of 2 ranks, found 1"),
    (lambda c: c.scatter(None, root=1 - c.rank), ValueError, "out: expected an array for this rank's part, found None"),
    (lambda c: c.scatter([ones], root=c.rank), ValueError, "a part for each of 2 ranks, found 1"),
    (lambda c: c.all_to_all([ones, np.ones(3)]), ValueError, "out: expected a list of arrays, as those in data differ"),
    (lambda c: c.all_gather(ones, out=[]), ValueError, "one array or more, found an empty list"),
    (lambda c: c.all_gather(ones, out=np.ones(8), counts=[-1, 9]), ValueError, r"counts.*found \[-1, 9\]"),
    (lambda c: c.gather(ones, out=np.ones(8), counts=3), TypeError, "counts.*a list of counts of elements, found 3"),
    (lambda c: c.scatter(ones, out=ones.copy(), counts=["a"]), TypeError, "counts.*found \\['a'\\]"),
    (lambda c: c.all_to_all(ones.copy(), counts=[2, 2], out_counts=[2, -2]), ValueError, "out_counts.*found"),
    (lambda c: c.barrier(timeout=0), ValueError, "timeout.*expected seconds above 0, at most a day, found 0"),
    (lambda c: c.barrier(timeout="soon"), TypeError, "timeout.*seconds above 0.*found 'soon'"),
    (lambda c: c.all_reduce(np.ones(2), timeout=timedelta(days=2)), ValueError, "timeout.*at most a day"),
    (lambda c: c.barrier(async_op=True, timeout=-1), ValueError, "timeout.*found -1"),
    (lambda c: c.split("red"), TypeError, "split: color: expected a number from 0 to .*, or None, found 'red'"),
    (lambda c: c.split(-1), ValueError, "split: color.*found -1"),
    (lambda c: c.split(2**32), ValueError, "split: color.*found 4294967296"),
    (lambda c: c.split(0, "first"), TypeError, "split: key: expected a number of 32 bits.*found 'first'"),
    (lambda c: c.split(0, None), TypeError, "split: key.*found None"),
    (lambda c: c.split(0, 2**31), ValueError, "split: key.*found 2147483648"),
    (lambda c: c.split(0, timeout=0), ValueError, "split: timeout.*found 0"),
    (lambda c: c.split(0, timeout="soon"), TypeError, "split: timeout.*found 'soon'"),
    (lambda c: c.all_reduce_coalesced(3), TypeError, "data: expected a list of arrays, found int"),
    (lambda c: c.all_reduce_coalesced([ones], out=[]), ValueError, "out: expected a list of 1 arrays.*found 0"),
    (lambda c: refuse(c, "all_reduce", "data", "this", "that"), ValueError, "all_reduce: data: expected this, found that"),
]


@pytest.mark.parametrize("call,kind,text", INVALID)
def test_invalid_arguments_are_refused_on_all_ranks(call, kind, text):
    first, second = both(call, lambda comm: comm.barrier())
    assert type(first) is kind, first
    with pytest.raises(kind, match=text):
        raise first
    assert isinstance(second, cs.MismatchError) and second.replica == 0, second
    assert read_only.tolist() == [1] * 4


def test_an_error_has_the_fields_of_the_invalid_argument():
    comm = cs.threads(1)[0]
    for call, kind, told in (
        (lambda: comm.broadcast(ones, root=1), ValueError, ("broadcast", "root", "a rank below 1", "1")),
        (lambda: comm.barrier(timeout="x"), TypeError, ("barrier", "timeout", "seconds above 0, at most a day", "'x'")),
    ):
        with pytest.raises(kind) as caught:
            call()
        error = caught.value
        assert (error.call, error.argument, error.expected, error.found) == told and error.replica is None


def test_invalid_timeouts_are_refused():
    comm = cs.threads(1)[0]
    for timeout in (0, -1, 1e9, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="timeout"):
            comm.barrier(timeout=timeout)
    with pytest.raises(TypeError):
        comm.barrier(timeout="soon")


def test_messages_name_calls_and_arguments_as_this_package_does():
    errors = both(lambda c: c.send(np.ones(200_000), 1), lambda c: c.recv(np.ones(3), 0))
    assert [error.call for error in errors] == ["send", "recv"]
    assert not any("Mailbox" in str(error) for error in errors)
    comms = cs.threads(2)
    with pytest.raises(cs.TimeoutError) as caught:
        comms[0].recv(np.ones(3), 1, timeout=0.05)
    assert caught.value.call == "recv"


@pytest.mark.parametrize("size", [-1, 0, 1025, 1 << 40, 1 << 70])
def test_an_invalid_number_of_threads_is_refused(size):
    with pytest.raises(ValueError) as caught:
        cs.threads(size)
    told = (caught.value.call, caught.value.argument, caught.value.expected, caught.value.found)
    assert told == ("threads", "size", "a number of ranks from 1 to 1024", str(size))


@pytest.mark.parametrize("rank,size,argument", [(-1, 2, "rank"), (0, -2, "size"), (0, 1 << 30, "size"), (0, 1 << 62, "size")])
def test_an_invalid_rank_or_size_is_refused(rank, size, argument):
    with pytest.raises(ValueError) as caught:
        cs.Communicator(cs.UniqueId(), rank, size, join_timeout=0.2)
    assert (caught.value.argument, caught.value.found) == (argument, str(rank if argument == "rank" else size))


def test_the_group_works_after_a_mistake():
    def rank(comm):
        with pytest.raises((ValueError, cs.MismatchError)):
            comm.all_reduce(np.ones(4), "avg" if comm.rank == 0 else "sum")
        return float(comm.all_reduce(np.ones(1))[0])

    assert cs.run(2, rank) == [2, 2]


def test_a_closed_communicator():
    comm = cs.threads(1)[0]
    comm.close()
    comm.close()
    with pytest.raises(RuntimeError, match="it was closed") as caught:
        comm.barrier()
    assert (caught.value.call, caught.value.problem) == ("Communicator", "it was closed")
    assert repr(comm) == "Communicator(closed)"


def test_ids():
    id = cs.UniqueId()
    assert pickle.loads(pickle.dumps(id)) == id and hash(cs.UniqueId(str(id))) == hash(id)
    assert cs.UniqueId.derived("a") == cs.UniqueId.derived("a") != cs.UniqueId.derived("b")
    assert id.place == cs.UniqueId().place and id.place.startswith(id.host_id) and id.place != id.host_id
    across = cs.UniqueId.across_hosts()
    assert across.place == id.place and across != cs.UniqueId.across_hosts()
    with cs.Communicator(across, 0, 1) as alone:
        assert alone.size == 1
    for wrong, kind in ((b"", ValueError), (bytes(128), ValueError), ("nonsense", ValueError), (3, TypeError)):
        with pytest.raises(kind):
            cs.UniqueId(wrong)
    with pytest.raises(ValueError, match="rank"):
        cs.Communicator(id, 2, 2)
    for byte, what in ((24, "host"), (40, "network namespace"), (48, "user"), (56, "build")):
        there = bytearray(bytes(id))
        there[byte] ^= 1
        with pytest.raises(ValueError, match=f"id of rank 3, {what}"):
            cs.Communicator(cs.UniqueId(bytes(there)), 3, 4)
    with pytest.raises(cs.MeetingError, match="1") as caught:
        cs.Communicator(id, 0, 2, join_timeout=0.2)
    assert caught.value.missing == [1]
    assert "0" in caught.value.task and "1" in caught.value.problem and caught.value.call in str(caught.value)
    with pytest.raises(ValueError):
        cs.threads(0)


def join_as_another_user(id, connection):
    os.setuid(65534)
    try:
        cs.Communicator(id, 1, 2)
    except ValueError as error:
        connection.send(str(error))


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can become another user")
def test_a_process_of_another_user_is_refused_at_once_by_name():
    context = multiprocessing.get_context("spawn")
    mine, other = context.Pipe()
    process = context.Process(target=join_as_another_user, args=(cs.UniqueId(), other))
    process.start()
    other.close()
    # Else it would wait for rank 0 for 5 minutes.
    assert mine.poll(60)
    assert "id of rank 1, user: expected 65534, where this process is, found 0" in mine.recv()
    process.join(20)


def test_arrays_on_a_gpu():
    class Array:
        def __dlpack_device__(self):
            return (2, 1)

        def __dlpack__(self, **_):
            raise AssertionError("the data were asked for")

    with pytest.raises(ValueError, match="an array in host memory, found cuda:1"):
        cs.threads(1)[0].all_reduce(Array())
