"""Measures calls of TensorFlow beside those of `consonance bench strategies`, under the same names.

Prints a line for each: the name, a tab and microseconds. A call is made eagerly, except within a run, where it is a
`tf.function`. Two logical CPUs stand for two replicas.
"""

import os
import sys
import tempfile
import time

import tensorflow as tf

PART, ROUNDS = sys.argv[1], int(sys.argv[2])


def timed(name, calls, call):
    if PART not in name:
        return
    times = []
    for _ in range(ROUNDS + 1):
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - begin) / calls)
    print(f"{name}\t{1e6 * sorted(times[1:])[ROUNDS // 2]}", flush=True)


cpus = [tf.config.LogicalDeviceConfiguration() for _ in range(2)]
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], cpus)
strategy = tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"])
one = tf.distribute.OneDeviceStrategy("cpu:0")


def per_replica(value):
    return strategy.experimental_distribute_values_from_function(lambda _: value)


def in_run(body, value):
    function = tf.function(lambda values: strategy.run(body, args=(values,)))
    values = per_replica(value)
    return lambda: function(values)


def all_reduce(op):
    return lambda value: tf.distribute.get_replica_context().all_reduce(op, value)


timed("run, 1 replica", 300, lambda: one.run(lambda: None))
timed("run", 100, lambda: strategy.run(lambda: None))
timed("run with all_reduce of a scalar", 100, in_run(all_reduce("sum"), tf.constant(1.0)))
for name, count, calls in ("scalars", 1, 100), ("1 MiB", 1 << 18, 30), ("64 MiB", 1 << 24, 1):
    values = per_replica(tf.ones([count]))
    timed(f"reduce of {name}", calls, lambda: strategy.reduce("sum", values, axis=None))
rows = per_replica(tf.zeros([64, 10]))
timed("gather of 64 x 10", 10, lambda: strategy.gather(rows, 0))
nest = [tf.ones([count]) for count in (13_824, 32, 2_048, 10, 1_280, 64)]
timed("all_reduce of a nest, 6 tensors, 69 KB", 30, in_run(all_reduce("mean"), nest))
for name, count, calls in ("1 MiB", 1 << 18, 30), ("4 MiB", 1 << 20, 10):
    own = tf.ones([count])
    timed(f"all_reduce of {name} that is kept", calls, in_run(all_reduce("sum"), own))
    gather = lambda value: tf.distribute.get_replica_context().all_gather(value, 0)
    timed(f"all_gather of {name}", calls, in_run(gather, own))
for name, count, columns, batch in ("64 rows of 40 B", 100_000, 10, 64), ("1,024 rows of 256 B", 200_000, 64, 1024):
    if PART in f"next batch, {name}":
        table = tf.data.Dataset.from_tensor_slices((tf.ones([count, columns]), tf.ones([count])))
        steps = iter(strategy.experimental_distribute_dataset(table.shuffle(count, seed=7).batch(batch)))
        timed(f"next batch, {name}", count // batch // (ROUNDS + 1), lambda: next(steps))
with strategy.scope():
    variable = tf.Variable(tf.ones([8192]), aggregation=tf.VariableAggregation.MEAN)
change = tf.ones([8192])
timed("Variable::assign_add of 32 KiB", 100, lambda: variable.assign_add(change))
timed("Variable::read of 32 KiB", 300, lambda: variable.read_value())
timed("distribute_values_from_function", 100, lambda: per_replica(1))
with strategy.scope():
    variables = [tf.Variable(tf.ones([1 << 22])) for _ in range(16)]
saved = tf.train.Checkpoint(variables=variables)
with tempfile.TemporaryDirectory() as folder:
    path = saved.write(os.path.join(folder, "saved"))
    timed("checkpoint::save of 256 MiB", 1, lambda: saved.write(os.path.join(folder, "saved")))
    timed("checkpoint::restore of 256 MiB", 1, lambda: saved.read(path))
