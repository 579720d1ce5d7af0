"""A task of a small parameter-server training with TensorFlow.

TF_CONFIG names the task. The chief prints a line for each step to standard error.
"""

import sys
import time

import tensorflow as tf

STEPS = 20

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("ps", "worker"):
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    )
    print("serves", file=sys.stderr)
    server.join()

strategy = tf.distribute.ParameterServerStrategy(resolver)
with strategy.scope():
    weights = tf.Variable(tf.random.normal([128, 128]))


@tf.function
def step():
    def on_worker():
        batch = tf.random.normal([256, 128])
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.matmul(batch, weights)))
        weights.assign_sub(0.01 * tape.gradient(loss, weights))
        return loss

    return strategy.run(on_worker)


# The chief computes, too, so that its own pools start.
local = tf.random.normal([512, 512])
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
for number in range(STEPS):
    coordinator.schedule(step)
    coordinator.join()
    local = tf.linalg.normalize(tf.matmul(local, local))[0]
    print(f"step {number}", file=sys.stderr)
print("trained", file=sys.stderr)
time.sleep(600)
