"""Ray's collective calls on Consonance, between two actors."""

import numpy as np
import pytest

ray = pytest.importorskip("ray", reason="pip install ray runs the tests of its collectives")


def actor():
    """Returns a class that Ray brings to its processes by value: they cannot import this file."""

    class Actor:
        """Makes each call of `ray.util.collective` in a process of its own."""

        def run(self, rank):
            import ray.util.collective as collective
            from ray.util.collective.types import ReduceOp

            import consonance as cs
            import consonance.ray  # noqa: F401

            collective.init_collective_group(2, rank, backend="consonance", group_name="both")
            other, results = 1 - rank, {}
            data = np.full(3, rank + 1.0)
            collective.allreduce(data, "both")
            results["allreduce"] = data.tolist()
            data = np.full(3, rank + 1.0)
            collective.allreduce(data, "both", ReduceOp.MAX)
            results["max"] = data.tolist()
            data = np.full(2, rank + 1)
            collective.reduce(data, 1, "both")
            results["reduce"] = data.tolist()
            data = np.full(2, rank)
            collective.broadcast(data, 1, "both")
            results["broadcast"] = data.tolist()
            parts = [np.zeros(2), np.zeros(2)]
            collective.allgather(parts, np.full(2, rank + 0.0), "both")
            results["allgather"] = [part.tolist() for part in parts]
            part = np.zeros(2)
            collective.reducescatter(part, [np.full(2, rank + 0.0), np.full(2, rank + 10.0)], "both")
            results["reducescatter"] = part.tolist()
            data = np.full(2, rank)
            if rank == 0:
                collective.send(data, other, "both")
            else:
                collective.recv(data, other, "both")
            results["message"] = data.tolist()
            collective.barrier("both")
            try:
                collective.allreduce(np.ones(3 + rank), "both")
            except cs.MismatchError as error:
                results["error"] = (error.argument, error.replica)
            collective.destroy_collective_group("both")
            return results

    return ray.remote(num_cpus=0)(Actor)


def test_the_calls_of_ray_between_two_actors(monkeypatch):
    # Else Ray writes a token into the home folder.
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        actors = [actor().remote() for _ in range(2)]
        results = ray.get([actor.run.remote(rank) for rank, actor in enumerate(actors)], timeout=120)
    finally:
        ray.shutdown()
    both = {
        "allreduce": [3, 3, 3],
        "max": [2, 2, 2],
        "broadcast": [1, 1],
        "allgather": [[0, 0], [1, 1]],
        "error": ("count", 1),
        "message": [0, 0],
    }
    assert results[0] == {**both, "reduce": [1, 1], "reducescatter": [1, 1]}
    assert results[1] == {**both, "reduce": [3, 3], "reducescatter": [21, 21]}
