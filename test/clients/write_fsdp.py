"""FSDP with two ranks on the CPU: a step of training, the sharded state of model and optimizer
by torch.distributed.checkpoint, and the full state of rank 0 by torch.save."""

import os

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from saving import SEED, digest, main, names, ranks

RANKS = 2


def model_and_optimizer(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 8))
    mesh = init_device_mesh("cpu", (RANKS,))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def train(model, optimizer, step):
    x = torch.randn(16, 256, generator=torch.Generator().manual_seed(SEED + step))
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


def sums(step, model, optimizer):
    m, o = get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    out = {f"{step} {k}": digest(v.contiguous().numpy()) for k, v in m.items()}
    for k, slots in o.get("state", {}).items():
        for slot, v in slots.items():
            out[f"{step} {k} {slot}"] = digest(v.contiguous().numpy())
    return out


def save_rank(rank, root):
    model, optimizer = model_and_optimizer(SEED)
    got = {}
    for step in (1, 2):
        train(model, optimizer, step)
        m, o = get_state_dict(model, optimizer)
        dcp.save({"model": m, "optim": o}, checkpoint_id=os.path.join(root, f"step-{step}"))
        full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        if rank == 0:
            torch.save(full, os.path.join(root, "full.pt"))
            for k, v in full.items():
                got[f"full {k}"] = digest(v.contiguous().numpy())
        for k, v in sums(step, model, optimizer).items():
            if rank == 0:
                got[k] = v
    return got


def load_rank(rank, root):
    got = {}
    for step in (1, 2):
        model, optimizer = model_and_optimizer(SEED + 100)
        train(model, optimizer, 50)  # makes the optimizer's state; every number of it is replaced
        m, o = get_state_dict(model, optimizer)
        dcp.load({"model": m, "optim": o}, checkpoint_id=os.path.join(root, f"step-{step}"))
        set_state_dict(model, optimizer, model_state_dict=m, optim_state_dict=o)
        got.update(sums(step, model, optimizer))
    for k, v in torch.load(os.path.join(root, "full.pt"), mmap=True, weights_only=True).items():
        got[f"full {k}"] = digest(v.contiguous().numpy())
    return got


def save(place):
    return ranks(RANKS, save_rank, place.root)


def load(place):
    names(place.root, "step-1", "step-2", "full.pt")
    return ranks(RANKS, load_rank, place.root)


if __name__ == "__main__":
    main(save, load)
