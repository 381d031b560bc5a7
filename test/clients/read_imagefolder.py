"""PyTorch: a DataLoader with four forked workers over torchvision's ImageFolder."""

import io
import os

import numpy as np

import images
from common import SEED, add, compare, digest, main

CLASSES = 10
PER_CLASS = 60


def pixels(img):
    return digest(f"{img.size}", np.asarray(img.convert("RGB")).tobytes())


def generate(root):
    from PIL import Image

    rng = np.random.default_rng(SEED)
    manifest = {}
    for c in range(CLASSES):
        folder = os.path.join(root, "train", f"class {c:03d}")  # a space, as people have
        os.makedirs(folder)
        for i in range(PER_CLASS):
            data = images.jpeg(rng, int(rng.integers(320, 640)), int(rng.integers(320, 640)))
            name = f"img_{i:05d}.JPEG"
            with open(os.path.join(folder, name), "wb") as f:
                f.write(data)
            manifest[f"class {c:03d}/{name}"] = digest(str(c), pixels(Image.open(io.BytesIO(data))))
    return manifest


def check(root, want):
    import torch
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder

    train = os.path.join(root, "train")

    class Named(ImageFolder):
        def __getitem__(self, i):
            img, label = super().__getitem__(i)
            return os.path.relpath(self.samples[i][0], train), label, np.asarray(img)

    dataset = Named(train)
    loader = DataLoader(dataset, batch_size=16, shuffle=True, num_workers=4, collate_fn=list,
                        generator=torch.Generator().manual_seed(SEED))
    got = {}
    for batch in loader:
        for name, label, img in batch:
            size = (img.shape[1], img.shape[0])
            add(got, name, digest(str(label), digest(f"{size}", img.tobytes())))
    compare("ImageFolder", got, want)


if __name__ == "__main__":
    main(generate, check)
