"""The Trainer of transformers with a tiny model: checkpoints, rotation, and going on from the
last one."""

import os
import sys

os.environ["USE_TF"] = "0"  # TensorFlow is in the environment, of a version that transformers refuses

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from saving import SEED, digest, main, same


def model():
    torch.manual_seed(SEED)
    return GPT2LMHeadModel(GPT2Config(vocab_size=128, n_positions=16, n_embd=32, n_layer=2, n_head=2))


def data():
    g = torch.Generator().manual_seed(SEED)
    return [{"input_ids": x, "labels": x} for x in torch.randint(0, 128, (24, 16), generator=g)]


def trainer(place, steps):
    args = TrainingArguments(output_dir=place.path("out"), max_steps=steps, save_steps=2, save_total_limit=2, use_cpu=True, report_to=[],
                             per_device_train_batch_size=4, logging_steps=1, disable_tqdm=True, seed=SEED % 1000)
    return Trainer(model=model(), args=args, train_dataset=data())


def sums(name, m):
    return {f"{name} {k}": digest(v.contiguous().numpy()) for k, v in m.state_dict().items()}


def save(place):
    trainer(place, 4).train()
    t = trainer(place, 8)
    t.train(resume_from_checkpoint=True)
    same("step at the end", t.state.global_step, 8)
    t.save_model(place.path("final"))
    return {**sums("final", t.model), **sums("checkpoint", t.model)}


def load(place):
    same("checkpoints", sorted(os.listdir(place.path("out"))), ["checkpoint-6", "checkpoint-8"])
    got = sums("final", GPT2LMHeadModel.from_pretrained(place.path("final")))
    got.update(sums("checkpoint", GPT2LMHeadModel.from_pretrained(place.path("out", "checkpoint-8"))))
    for name in ("optimizer.pt", "scheduler.pt"):
        if not torch.load(place.path("out", "checkpoint-8", name), weights_only=True):
            sys.exit(f"{name} is empty")
    return got


if __name__ == "__main__":
    main(save, load)
