"""Reads a data set as a training job does, with an ordinary PyTorch DataLoader of four
workers, and tells the throughput of each epoch.

    train.py imagefolder|webdataset DIR EPOCHS [CHECKPOINT]

After the last epoch the state of a model is saved as CHECKPOINT, as trainers do it: under another name
first, forced to the disk, and renamed. Before each epoch it prints "ready" and waits for a line; after it, a line of JSON. The
pictures arrive as JPEG bytes, one tensor for a batch, as they do where the GPU decodes them
(torchvision.io.decode_jpeg), so that it is the reading that is measured and not this
machine's decoding; some of each epoch are decoded, to see that they are pictures.
"""

import glob
import json
import os
import sys
import time
import warnings

import torch
from torch.utils.data import DataLoader

warnings.filterwarnings("ignore", message="This DataLoader will create")
BATCH = 32


def collate(samples):
    data = [s[0] for s in samples]
    return torch.cat(data), [len(d) for d in data], [s[1] for s in samples]


def image_folder(root):
    from torchvision.datasets import ImageFolder
    from torchvision.io import read_file

    return ImageFolder(root, loader=read_file), dict(shuffle=True)


def web_dataset(root):
    import webdataset as wds

    def sample(s):
        return torch.frombuffer(bytearray(s["jpg"]), dtype=torch.uint8), int(s["cls"])

    urls = sorted(glob.glob(os.path.join(root, "*.tar")))
    return wds.WebDataset(urls, shardshuffle=100, seed=1).shuffle(100).map(sample), {}


def save(path):
    """Saves a model of 24 million parameters; returns how large the file is, and how long that took."""
    model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(6)])
    start = time.monotonic()
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".tmp", "wb") as f:
        torch.save(model.state_dict(), f)
        f.flush()
        os.fsync(f.fileno())
    os.replace(path + ".tmp", path)
    return {"saved": os.path.getsize(path), "saving": time.monotonic() - start}


def main(kind, root, epochs, checkpoint=""):
    from torchvision.io import decode_jpeg

    start = time.monotonic()
    dataset, options = {"imagefolder": image_folder, "webdataset": web_dataset}[kind](root)
    loader = DataLoader(dataset, batch_size=BATCH, num_workers=4, collate_fn=collate, persistent_workers=True, **options)
    scan = time.monotonic() - start
    for epoch in range(epochs):
        print("ready", flush=True)
        sys.stdin.readline()
        samples = size = 0
        start = time.monotonic()
        for n, (data, lengths, labels) in enumerate(loader):
            samples += len(labels)
            size += len(data)
            if n % 50 == 0:
                assert decode_jpeg(data[:lengths[0]]).shape[0] == 3
        told = {"samples": samples, "bytes": size, "seconds": time.monotonic() - start, "scan": scan if epoch == 0 else 0}
        if checkpoint and epoch == epochs - 1:
            told |= save(checkpoint)
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
