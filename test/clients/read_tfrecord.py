"""TensorFlow: tf.data over TFRecord files, interleaved, plain and compressed."""

import os

os.environ.update(TF_CPP_MIN_LOG_LEVEL="2", CUDA_VISIBLE_DEVICES="")

import numpy as np

from common import SEED, add, compare, digest, main

FILES = 6
PER_FILE = 300


def generate(root):
    import tensorflow as tf

    rng = np.random.default_rng(SEED)
    manifest = {}
    for f in range(FILES):
        packed = f % 2 == 1
        name = f"train-{f:05d}-of-{FILES:05d}.tfrecord" + (".gz" if packed else "")
        with tf.io.TFRecordWriter(os.path.join(root, name), "GZIP" if packed else None) as out:
            for i in range(PER_FILE):
                key = f"{f}/{i}"
                data = rng.bytes(int(rng.integers(1, 60_000)))
                label = int(rng.integers(1000))
                out.write(tf.train.Example(features=tf.train.Features(feature={
                    "key": tf.train.Feature(bytes_list=tf.train.BytesList(value=[key.encode()])),
                    "data": tf.train.Feature(bytes_list=tf.train.BytesList(value=[data])),
                    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
                })).SerializeToString())
                manifest[key] = digest(data, str(label))
    return manifest


def check(root, want):
    import tensorflow as tf

    spec = {"key": tf.io.FixedLenFeature([], tf.string), "data": tf.io.FixedLenFeature([], tf.string),
            "label": tf.io.FixedLenFeature([], tf.int64)}
    got = {}
    for pattern, kind in (("*.tfrecord", ""), ("*.tfrecord.gz", "GZIP")):
        dataset = (
            tf.data.Dataset.list_files(os.path.join(root, pattern), shuffle=True, seed=SEED)
            .interleave(lambda name: tf.data.TFRecordDataset(name, compression_type=kind), cycle_length=3,
                        num_parallel_calls=tf.data.AUTOTUNE)
            .map(lambda r: tf.io.parse_single_example(r, spec), num_parallel_calls=tf.data.AUTOTUNE)
            .shuffle(100, seed=SEED)
            .prefetch(tf.data.AUTOTUNE))
        for s in dataset.as_numpy_iterator():
            add(got, s["key"].decode(), digest(s["data"], str(s["label"])))
    compare("tf.data", got, want)


if __name__ == "__main__":
    main(generate, check)
