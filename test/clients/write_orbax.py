"""Orbax: a manager that keeps two checkpoints, in the background; each is written in a directory
NAME.orbax-checkpoint-tmp that is renamed."""

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from saving import SEED, digest, main, same, tree


def state(step):
    keys = jax.random.split(jax.random.PRNGKey(SEED + step), 4)
    return {"params": {f"layer{i}": jax.random.normal(k, (256, 300 + i)) for i, k in enumerate(keys)},
            "opt": {"mu": jnp.arange(1000, dtype=jnp.float32) * step}, "step": jnp.array(step)}


def sums(step, s):
    leaves, _ = jax.tree_util.tree_flatten_with_path(s)
    return {f"{step} {jax.tree_util.keystr(p)}": digest(np.ascontiguousarray(np.asarray(v))) for p, v in leaves}


def manager(place):
    return ocp.CheckpointManager(place.path("manager"), options=ocp.CheckpointManagerOptions(max_to_keep=2, create=True))


def save(place):
    with manager(place) as m:
        for step in range(1, 5):
            m.save(step, args=ocp.args.StandardSave(state(step)))
        m.wait_until_finished()
        same("steps", sorted(m.all_steps()), [3, 4])
    with ocp.StandardCheckpointer() as c:
        c.save(place.path("alone"), state(10))
        c.wait_until_finished()
        c.save(place.path("alone"), state(11), force=True)  # over the one that is there
    return {k: v for s in (3, 4, 11) for k, v in sums(s, state(s)).items()}


def load(place):
    same("what should not be left", [k for k in tree(place.root) if "orbax-checkpoint-tmp" in k], [])
    got = {}
    with manager(place) as m:
        same("steps", sorted(m.all_steps()), [3, 4])
        for step in (3, 4):
            got.update(sums(step, m.restore(step, args=ocp.args.StandardRestore(jax.tree.map(jnp.zeros_like, state(step))))))
    with ocp.StandardCheckpointer() as c:
        got.update(sums(11, c.restore(place.path("alone"), jax.tree.map(jnp.zeros_like, state(11)))))
    return got


if __name__ == "__main__":
    main(save, load)
