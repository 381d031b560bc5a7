"""DeepSpeed with ZeRO 1 on one rank of the CPU: save_checkpoint twice, the file `latest` written
over, a script copied and made executable, and load_checkpoint."""

import os

import torch

from saving import SEED, digest, free_port, main, same


def engine():
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()),
                      DS_ACCELERATOR="cpu", DS_IGNORE_CUDA_DETECTION="1")
    import deepspeed

    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    torch.manual_seed(SEED)
    net = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
    config = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 1}, "zero_allow_untested_optimizer": True,
              "bf16": {"enabled": True}}
    e, _, _, _ = deepspeed.initialize(model=net, optimizer=torch.optim.AdamW(net.parameters()), config=config)
    return e


def step(e, n):
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(SEED + n)).to(torch.bfloat16)
    e.backward(e(x).float().square().mean())
    e.step()


def sums(e):
    out = {f"model {k}": digest(v.contiguous().view(torch.uint8).numpy()) for k, v in e.module.state_dict().items()}
    for i, p in enumerate(e.optimizer.single_partition_of_fp32_groups):
        out[f"fp32 {i}"] = digest(p.detach().contiguous().numpy())
    return out


def save(place):
    e = engine()
    for n in (1, 2):
        step(e, n)
        e.save_checkpoint(place.path("checkpoints"), client_state={"n": n})
    return sums(e)


def load(place):
    with open(place.path("checkpoints", "latest")) as f:
        same("latest", f.read(), "global_step2")
    script = place.path("checkpoints", "zero_to_fp32.py")
    if place.metadata:
        same("the script is executable", os.access(script, os.X_OK) and bool(os.stat(script).st_mode & 0o100), True)
    e = engine()
    step(e, 50)
    _, state = e.load_checkpoint(place.path("checkpoints"))
    same("the client's state", state["n"], 2)
    return sums(e)


if __name__ == "__main__":
    main(save, load)
