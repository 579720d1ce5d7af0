#!/usr/bin/env python3
"""A wide & deep model on generated data, for pinfold bench with TensorFlow's own threads.

Needs TensorFlow; the wheel for CPUs is enough:

    python3 -m venv tf && tf/bin/pip install tensorflow-cpu
    pinfold bench --command 'tf/bin/python deploy/examples/bench-tensorflow.py' --steps '^step (?<step>[0-9]+) (?<ms>[0-9.]+) ms'

The program trains until a signal ends it, or for BENCH_STEPS steps, and writes a line for each step. Environment variables set the
sizes: BENCH_FEATURES, BENCH_VOCABULARY, BENCH_DIM, BENCH_HIDDEN (two numbers), BENCH_BATCH. The program sets no thread counts:
TF_NUM_INTRAOP_THREADS and TF_NUM_INTEROP_THREADS set them, or TensorFlow uses its defaults.
"""

import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # set before the import, which would print the CPU's instructions

import tensorflow as tf


def size(name, default):
    text = os.environ.get(f"BENCH_{name}", default)
    try:
        numbers = [int(number) for number in text.split(",")]
    except ValueError:
        numbers = [-1]
    if min(numbers) < (name != "STEPS") or len(numbers) != len(default.split(",")):
        sys.exit(f"BENCH_{name}={text}: write it like {default}")
    return numbers


(features,), (vocabulary,), (dim,), (batch,) = (
    size(name, default) for name, default in [("FEATURES", "26"), ("VOCABULARY", "20000"), ("DIM", "16"), ("BATCH", "256")]
)
first, second = size("HIDDEN", "256,128")
(last,) = size("STEPS", "0")

# The deep part has an embedding for each value of a feature, and three layers. The wide part has a weight for each value.
deep = tf.Variable(tf.random.stateless_normal([features * vocabulary, dim], seed=[1, 1], stddev=0.05))
wide = tf.Variable(tf.zeros([features * vocabulary]))


def dense(inputs, outputs, seed):
    kernel = tf.random.stateless_normal([inputs, outputs], seed=[seed, 2], stddev=(2 / inputs) ** 0.5)
    return tf.Variable(kernel), tf.Variable(tf.zeros([outputs]))


layers = [dense(features * dim, first, 3), dense(first, second, 4), dense(second, 1, 5)]
offsets = tf.range(features) * vocabulary


@tf.function
def step(seed):
    """Trains one step on generated clicks. Small values are frequent, and the first value determines the label."""
    skewed = tf.random.stateless_uniform([batch, features], seed=[seed, 6]) ** 3
    values = tf.cast(skewed * vocabulary, tf.int32)
    labels = tf.cast(values[:, 0] % 2, tf.float32)
    rows = values + offsets
    variables = [deep, wide, *[variable for layer in layers for variable in layer]]
    with tf.GradientTape() as tape:
        hidden = tf.reshape(tf.gather(deep, rows), [batch, features * dim])
        for kernel, bias in layers[:-1]:
            hidden = tf.nn.relu(hidden @ kernel + bias)
        kernel, bias = layers[-1]
        logits = tf.squeeze(hidden @ kernel + bias, 1) + tf.reduce_sum(tf.gather(wide, rows), 1)
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))
    for variable, gradient in zip(variables, tape.gradient(loss, variables)):
        if isinstance(gradient, tf.IndexedSlices):
            # The step updates only the rows of the batch, like LazyAdam and Adadelta. Adam updates all rows.
            variable.scatter_sub(tf.IndexedSlices(0.05 * gradient.values, gradient.indices))
        else:
            variable.assign_sub(0.05 * gradient)
    return loss


done = 0
while not last or done < last:
    began = time.perf_counter()
    loss = step(tf.constant(done)).numpy()
    done += 1
    print(f"step {done} {(time.perf_counter() - began) * 1e3:.3f} ms loss {loss:.4f}", flush=True)
