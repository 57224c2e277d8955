"""The package: its documentation, its types, and the command that it brings."""

import ctypes
import doctest
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import consonance as cs

ROOT = Path(cs.__file__).parent


def documented():
    """Yields each class, method and function that users call, with its name."""
    for name in cs.__all__:
        item = getattr(cs, name)
        yield name, item
        if inspect.isclass(item) and not issubclass(item, Exception):
            for member, value in vars(item).items():
                if not member.startswith("_"):
                    yield f"{name}.{member}", value


def test_every_item_has_a_docstring_and_its_examples_run():
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner()
    examples = 0
    for name, item in [("consonance", cs), *documented()]:
        text = inspect.getdoc(item)
        assert text, f"{name} has no docstring"
        test = parser.get_doctest(text, {}, name, None, None)
        examples += len(test.examples)
        assert runner.run(test).failed == 0, name
    assert examples > 20


def test_the_stubs_match_the_module():
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy.stubtest", "consonance._native", "--ignore-disjoint-bases"]
    done = subprocess.run(command, capture_output=True, timeout=300, text=True)
    assert done.returncode == 0, done.stdout


TYPED = """
import consonance as cs
import numpy as np
from numpy.typing import NDArray
from typing_extensions import assert_type

Array = NDArray[np.float64]

def rank(comm: cs.Communicator) -> int:
    return comm.rank

def program(comm: cs.Communicator, data: Array, request: cs.Request) -> None:
    assert_type(cs.run(2, rank), list[int])
    assert_type(comm.all_reduce(data), Array)
    assert_type(comm.all_reduce([data, data]), list[Array])
    assert_type(comm.all_reduce(data, async_op=True), cs.Request)
    assert_type(comm.all_reduce_exact(data, "mean"), Array)
    assert_type(comm.all_reduce_exact(data, async_op=True), cs.Request)
    assert_type(comm.all_reduce_coalesced([data]), list[Array])
    assert_type(comm.reduce(data), Array | None)
    assert_type(comm.reduce_scatter([data, data]), Array)
    assert_type(comm.broadcast(data), Array)
    assert_type(comm.all_gather(data), Array)
    assert_type(comm.all_gather(data, out=[data, data]), list[Array])
    assert_type(comm.gather(data, out=data), Array | None)
    assert_type(comm.scatter(None, out=data), Array)
    assert_type(comm.all_to_all(data, out=data), Array)
    assert_type(comm.recv(data), int)
    sum = cs.Accumulator(comm, data, range(2), of=2)
    assert_type(sum.all_reduce(data), Array)
    assert_type(sum.reduce(data, root=1), Array | None)
    assert_type(sum.reduce_scatter(data, async_op=True), cs.Request)
"""


def test_the_results_of_calls_have_types(tmp_path):
    pytest.importorskip("mypy")
    program = tmp_path / "program.py"
    for text, status in ((TYPED, 0), (TYPED.replace("reduce(data)", "reduce(data, 'avg')"), 1)):
        program.write_text(text)
        command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path / "cache", program]
        done = subprocess.run(command, capture_output=True, timeout=300, text=True)
        assert done.returncode == status, done.stdout


def test_the_library_exports_all_functions_of_the_header():
    header = (Path(cs.get_include()) / "consonance.h").read_text()
    functions = set(re.findall(r"\b(cons_[a-z0-9_]+)\(", header))
    assert len(functions) > 20
    library = ctypes.CDLL(cs._native.__file__)
    assert [name for name in sorted(functions) if not hasattr(library, name)] == []


def test_nothing_starts_at_import():
    code = (
        "import consonance, threading, os, sys\n"
        "assert threading.active_count() == 1 and len(os.listdir('/proc/self/task')) == 1\n"
        "assert 'numpy' not in sys.modules and 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_command_starts_programs(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import consonance as cs, numpy as np\n"
        "with cs.Communicator.from_env() as comm:\n"
        "    print(comm.rank, comm.all_reduce(np.ones(2)))\n"
    )
    command = [sys.executable, "-m", "consonance"]
    done = subprocess.run([*command, "run", "-n", "2", sys.executable, program], capture_output=True, timeout=60, text=True)
    assert done.returncode == 0, done
    assert sorted(done.stdout.splitlines()) == ["[worker 0] 0 [2. 2.]", "[worker 1] 1 [2. 2.]"]
    version = subprocess.run([*command, "--version"], capture_output=True, timeout=60, text=True)
    assert version.stdout == f"consonance {cs._native.__version__}\n"
    wrong = subprocess.run([*command, "nonsense"], capture_output=True, timeout=60, text=True)
    assert wrong.returncode == 2 and "nonsense" in wrong.stderr
    # It starts processes of itself.
    bench = [*command, "bench", "barrier", "--transport", "processes", "--time", "10ms"]
    done = subprocess.run(bench, capture_output=True, timeout=60, text=True)
    assert done.returncode == 0 and "barrier" in done.stdout, done


@pytest.mark.parametrize("signal", ["INT", "TERM"])
def test_a_signal_ends_the_command(signal):
    command = [sys.executable, "-m", "consonance", "run", "-n", "2", "sleep", "60"]
    started = subprocess.Popen(command, stderr=subprocess.PIPE)
    with pytest.raises(subprocess.TimeoutExpired):
        started.wait(1)
    subprocess.run(["kill", f"-{signal}", str(started.pid)], check=True)
    assert started.wait(20) != 0
