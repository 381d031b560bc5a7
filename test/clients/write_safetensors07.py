"""safetensors 0.7, which writes in place: see write_safetensors.py."""

from saving import main
from write_safetensors import load, save

if __name__ == "__main__":
    main(save, load)
