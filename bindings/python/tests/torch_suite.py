"""Runs PyTorch's own tests of `torch.distributed`, which are in its wheel, on this backend.

    WORLD_SIZE=4 python torch_suite.py [NAME...]

The tests are used as they are. What is changed is who may run them: each gate below names the backends that a test is
for, or asks for more ranks than it needs. Ends with 1 if a test fails, or if fewer than `EXPECTED` have run.

With `CONSONANCE_WIRE=ucx` all data travel over UCX, as between several hosts, and each rank checks that it has a wire.
"""

import importlib.util
import os
import re
import shutil
import sys
import tempfile
import unittest

import torch

BACKEND = "consonance"
os.environ["BACKEND"] = BACKEND
os.environ.setdefault("WORLD_SIZE", "4")
WORLD_SIZE = int(os.environ["WORLD_SIZE"])
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
# The tests make files that they leave.
FOLDER = tempfile.mkdtemp(prefix="consonance-torch-")
tempfile.tempdir = os.environ["TMPDIR"] = os.environ["TEMP_DIR"] = FOLDER

# The tests that run on a CPU, by the number of ranks. Fewer ranks skip some.
EXPECTED = {4: 126, 2: 99}

# Gates in the text of the tests.
GATES = [
    (r'BACKEND != "gloo"', f'BACKEND not in ("gloo", "{BACKEND}")'),
    (r'BACKEND != "mpi"', f'BACKEND not in ("mpi", "{BACKEND}")'),
    (r'BACKEND == "gloo"', f'BACKEND in ("gloo", "{BACKEND}")'),
    (r'\{"gloo"\}', f'{{"gloo", "{BACKEND}"}}'),
]


def with_wire(join):
    """Returns a function that joins a group and checks that this rank has loaded UCX."""

    def joined(*arguments):
        comm = join(*arguments)
        with open("/proc/self/maps") as maps:
            assert "/libucp" in maps.read(), "expected a group over UCX, found one without it"
        return comm

    return joined


def load():
    """Imports the tests with open gates."""
    from torch.testing._internal import common_distributed

    import consonance.torch  # noqa: F401  Before PyTorch 2.14 this registers the backend.
    from consonance.torch import _group

    if os.environ.get("CONSONANCE_WIRE") == "ucx":
        _group.join = with_wire(_group.join)

    for feature in ("ddp", "gpu", "subgroup", "plugin"):
        common_distributed.DistTestCases.backend_feature[feature].add(BACKEND)

    def skip_if_small_worldsize(test):
        # They use 3 ranks.
        return unittest.skipIf(WORLD_SIZE < 3, "needs 3 ranks")(test)

    common_distributed.skip_if_small_worldsize = skip_if_small_worldsize
    name = "torch.testing._internal.distributed.distributed_test"
    spec = importlib.util.find_spec(name)
    text = spec.loader.get_source(name)
    for gate, opened in GATES:
        text, count = re.subn(gate, opened, text)
        assert count, f"{gate}: expected in the tests of this PyTorch, found nothing"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    exec(compile(text, spec.origin, "exec"), module.__dict__)
    return module


tests = load()


class TestConsonance(tests.TestDistBackend, tests.DistributedTest._DistTestBase):
    """The tests, in ranks that are forked."""

    def setUp(self):
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


def main():
    names = sys.argv[1:] or unittest.TestLoader().getTestCaseNames(TestConsonance)
    suite = unittest.TestSuite(TestConsonance(name) for name in names)
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    passed = result.testsRun - len(result.skipped) - len(result.failures) - len(result.errors)
    print(f"torch_suite: {WORLD_SIZE} ranks: {passed} of {passed + len(result.failures) + len(result.errors)} passed")
    is_whole = bool(sys.argv[1:]) or passed >= EXPECTED.get(WORLD_SIZE, 1)
    sys.exit(0 if result.wasSuccessful() and is_whole else 1)


if __name__ == "__main__":
    try:
        main()
    finally:
        shutil.rmtree(FOLDER, ignore_errors=True)
