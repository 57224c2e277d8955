"""Measures empty tasks and reads of variables of other libraries, beside `consonance bench coordinator`.

Prints a line for each: the name of the row, a tab and microseconds. The tasks run in two workers. The argument is one
of tensorflow, ray, futures.
"""

import sys
import time

ALONE = 300
WHOLE, ROWS, ROW, LOOKED_UP = 16 << 20, 1 << 20, 64, 10_000


def report(name, microseconds):
    print(f"{name}\t{microseconds}", flush=True)


def seconds(call):
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def median(count, call):
    call()
    return 1e6 * sorted(seconds(call) for _ in range(count))[count // 2]


def tasks(alone, queue, count):
    """Measures tasks alone, and so many that are queued at once: fewer where one takes long."""
    report("an empty closure, scheduled and fetched", median(ALONE, alone))
    report("an empty closure of many that are queued", 1e6 * seconds(lambda: queue(count)) / count)


def tensorflow():
    import random
    import socket

    import tensorflow as tf

    def free_address():
        with socket.socket() as listener:
            listener.bind(("localhost", 0))
            return f"localhost:{listener.getsockname()[1]}"

    jobs = {"worker": [free_address() for _ in range(2)], "ps": [free_address()]}
    cluster = tf.train.ClusterSpec(jobs)
    for job, addresses in jobs.items():
        for index in range(len(addresses)):
            tf.distribute.Server(cluster, job_name=job, task_index=index, protocol="grpc", start=True)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, rpc_layer="grpc")
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        whole = tf.Variable(tf.zeros([WHOLE]))
        table = tf.Variable(tf.zeros([ROWS, ROW]))

    @tf.function
    def empty(number):
        return number

    def queue(count):
        for number in range(count):
            coordinator.schedule(empty, args=(number,))
        coordinator.join()

    tasks(lambda: coordinator.schedule(empty, args=(1,)).fetch(), queue, 300)
    report("a variable of 64 MiB read", median(9, lambda: whole.read_value()))
    indices = [random.sample(range(ROWS), LOOKED_UP) for _ in range(32)]
    rows = iter(indices)
    report("10,000 rows of 256 B of 256 MiB looked up", median(31, lambda: tf.nn.embedding_lookup(table, next(rows))))


def ray():
    import ray

    ray.init(num_cpus=2, include_dashboard=False, logging_level="error", log_to_driver=False)

    @ray.remote
    def empty(number):
        return number

    ray.get([empty.remote(number) for number in range(100)])  # starts the workers
    tasks(
        lambda: ray.get(empty.remote(1)),
        lambda count: ray.get([empty.remote(number) for number in range(count)]),
        3000,
    )
    ray.shutdown()


def empty(number):
    return number


def futures():
    from concurrent.futures import ProcessPoolExecutor, wait

    with ProcessPoolExecutor(2) as pool:
        tasks(
            lambda: pool.submit(empty, 1).result(),
            lambda count: wait([pool.submit(empty, number) for number in range(count)]),
            10_000,
        )


if __name__ == "__main__":
    {"tensorflow": tensorflow, "ray": ray, "futures": futures}[sys.argv[1]]()
