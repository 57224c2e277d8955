"""TPUs: no strategy runs on one, and XLA compiles what strategies with static shapes accept."""

import importlib.util
import os
import subprocess
import sys

import pytest

import consonance as cs


def test_a_strategy_for_tpus_names_the_option():
    for arguments in ((), ("local",)):
        with pytest.raises(NotImplementedError, match="Builder::static_shapes"):
            cs.TPUStrategy(*arguments)


# Compiles ahead of time for a TPU of four chips that is described, and not there. Each line says
# which collective of the compiler each of ours became.
PROGRAM = """
import jax, jax.numpy as jnp, numpy as np
from jax.experimental.topologies import get_topology_desc
from jax.sharding import Mesh, NamedSharding, PartitionSpec

devices = get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices
mesh = Mesh(np.array(devices), ("replica",))
split, whole = PartitionSpec("replica"), PartitionSpec()
accepted = {
    "all_reduce sum": lambda x: jax.lax.psum(x, "replica"),
    "all_reduce mean": lambda x: jax.lax.pmean(x, "replica"),
    "all_reduce of a nest": lambda x: jax.lax.psum((x, [x[0], x.astype(jnp.int32)]), "replica"),
    "all_gather 0": lambda x: jax.lax.all_gather(x, "replica", axis=0, tiled=True),
    "all_gather 1": lambda x: jax.lax.all_gather(x, "replica", axis=1, tiled=True),
    "reduce sum 0": lambda x: jax.lax.psum(x.sum(0), "replica"),
    "reduce mean 0": lambda x: jax.lax.pmean(x.mean(0), "replica"),
    "gather 0": lambda x: jax.lax.all_gather(x, "replica", axis=0, tiled=True),
}
values = jax.ShapeDtypeStruct((8 * len(devices), 128), jnp.float32, sharding=NamedSharding(mesh, split))
for name, function in accepted.items():
    function = jax.shard_map(function, mesh=mesh, in_specs=split, out_specs=whole, check_vma=False)
    text = jax.jit(function).lower(values).compile().as_text()
    print(name, *(kind for kind in ("all-reduce", "all-gather") if kind in text))
"""


def test_each_accepted_collective_is_compiled_for_a_tpu():
    for package in ("jax", "libtpu"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"pip install {package} compiles the collectives for a TPU that is described")
    # A process of its own: JAX chooses its devices once.
    settings = {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, env=os.environ | settings, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 8, done.stdout
    for line in lines:
        assert line.endswith("all-gather" if "gather" in line.split()[0] else "all-reduce"), line
