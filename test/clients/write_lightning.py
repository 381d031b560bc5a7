"""Lightning's ModelCheckpoint: checkpoints are made in the directory for temporary files, which is
on another filesystem, and moved; the last one is a symbolic link; old ones are removed."""

import os

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from saving import SEED, digest, main, same, target


class Tiny(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(64, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 1))

    def training_step(self, batch, index):
        loss = self.net(batch).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def trainer(place, epochs, callbacks=()):
    return L.Trainer(default_root_dir=place.root, max_epochs=epochs, accelerator="cpu", devices=1, callbacks=list(callbacks),
                     logger=CSVLogger(place.path("logs"), name="csv"), enable_progress_bar=False, enable_model_summary=False,
                     log_every_n_steps=1)


def batches():
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(SEED))
    return torch.utils.data.DataLoader(x, batch_size=8)


def sums(name, state):
    return {f"{name} {k}": digest(v.contiguous().numpy()) for k, v in state.items()}


def save(place):
    L.seed_everything(SEED, verbose=False)
    model = Tiny()
    keep = ModelCheckpoint(dirpath=place.path("checkpoints"), filename="{epoch}", save_top_k=2, monitor="epoch", mode="max",
                           save_last="link", every_n_epochs=1)
    t = trainer(place, 4, [keep])
    t.fit(model, batches())
    t.save_checkpoint(place.path("by-hand.ckpt"))
    t.save_checkpoint(place.path("by-hand.ckpt"), weights_only=True)
    same("names", sorted(os.listdir(place.path("checkpoints"))), ["epoch=2.ckpt", "epoch=3.ckpt", "last.ckpt"])
    return {**sums("last", model.state_dict()), **sums("by-hand", model.state_dict())}


def load(place):
    same("names", sorted(os.listdir(place.path("checkpoints"))), ["epoch=2.ckpt", "epoch=3.ckpt", "last.ckpt"])
    last = target(place, "checkpoints", "last.ckpt")
    same("the last one is a link", last, "epoch=3.ckpt")
    name = "last.ckpt" if place.metadata else last
    got = sums("last", Tiny.load_from_checkpoint(place.path("checkpoints", name)).state_dict())
    got.update(sums("by-hand", torch.load(place.path("by-hand.ckpt"), weights_only=True)["state_dict"]))
    with open(place.path("logs", "csv", "version_0", "metrics.csv")) as f:
        same("rows of metrics", len(f.readlines()), 17)
    return got


if __name__ == "__main__":
    main(save, load)
