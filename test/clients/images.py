"""Real JPEGs, each with a content of its own."""

import io

import numpy as np
from PIL import Image


def jpeg(rng, width, height, quality=87):
    """A JPEG of a smooth picture with some grain, so that it is of a photograph's size."""
    small = rng.integers(0, 256, (height // 40 + 2, width // 40 + 2, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(small).resize((width, height), Image.BICUBIC))
    grain = rng.integers(-14, 15, (height, width, 1), dtype=np.int16)
    pixels = np.clip(smooth.astype(np.int16) + grain, 0, 255).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=quality)
    return out.getvalue()
