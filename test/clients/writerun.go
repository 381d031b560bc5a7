package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/leatfs/leatfs/test/load"
	"github.com/leatfs/leatfs/test/mountpoint"
)

// writeRunner runs one client that writes through all its phases.
type writeRunner struct {
	runner
	c      *writeConfig
	layers []string // directories for PYTHONPATH

	cells map[string]string // phase: how long it took, or that it failed
	kills int               // of the worker, in the round that is under way
	notes []string          // what is no failure, and not as it should be
}

// run returns what failed. A failed phase ends the round that it belongs to, not the other.
func (r *writeRunner) run(ctx context.Context) (errs []error) {
	r.cells = map[string]string{}
	if r.c.plain != "" {
		root := filepath.Join(r.c.plain, r.name)
		if err := os.Mkdir(root, 0o755); err != nil {
			return []error{err}
		}
		err := r.saveLoad(ctx, root)
		if err != nil {
			return []error{err}
		}
		if !r.keep {
			err = os.RemoveAll(root)
		}
		if err != nil {
			return []error{err}
		}
		return nil
	}
	if err := r.round(ctx, "", func(ctx context.Context, m *mountpoint.Mount) ([]string, error) {
		return []string{""}, r.saveLoad(ctx, m.Dir)
	}); err != nil {
		errs = append(errs, err)
	}
	if r.c.noKill || ctx.Err() != nil {
		return errs
	}
	if err := r.round(ctx, "killed-", r.killedSaveLoad); err != nil {
		errs = append(errs, err)
	}
	return errs
}

// saveLoad is the phases save and load, in an empty directory.
func (r *writeRunner) saveLoad(ctx context.Context, root string) error {
	side := filepath.Join(r.work, "side")
	if err := r.step("save", func() error { return r.script(ctx, root, "save", side, true) }); err != nil {
		return err
	}
	return r.step("load", func() error { return r.script(ctx, root, "load", side, true) })
}

// round is all phases in a bucket of its own. save writes into the mount and loads again; it
// returns the directories below the mount in which the client worked.
func (r *writeRunner) round(ctx context.Context, prefix string, save func(context.Context, *mountpoint.Mount) ([]string, error)) error {
	r.kills = 0
	bucket := "write-" + prefix + r.name
	if err := r.server.CreateBucket(ctx, bucket); err != nil {
		return err
	}
	var dirs []string
	var want tree
	err := r.mounted(ctx, "s3://"+bucket, prefix+"cache", nil, func(m *mountpoint.Mount) (err error) {
		if dirs, err = save(ctx, m); err != nil {
			return err
		}
		if err := r.step(prefix+"bucket", func() error {
			want, err = r.settled(ctx, bucket, m.Dir)
			return err
		}); err != nil || prefix != "" {
			return err
		}
		return r.requests(ctx, m, want)
	})
	_ = os.RemoveAll(filepath.Join(r.work, prefix+"cache"))
	if err != nil {
		return err
	}
	return r.mounted(ctx, "s3://"+bucket, prefix+"cache-fresh", nil, func(m *mountpoint.Mount) error {
		return r.step(prefix+"fresh", func() error {
			for _, d := range dirs {
				if err := r.script(ctx, filepath.Join(m.Dir, d), "load", filepath.Join(r.work, prefix+"side"+d), false); err != nil {
					return err
				}
			}
			got, err := treeOf(m.Dir)
			if err == nil {
				err = want.differs(got)
			}
			return err
		})
	})
}

// requests notes how many requests it took to bring everything into the bucket, and how many files that is.
func (r *writeRunner) requests(ctx context.Context, m *mountpoint.Mount, have tree) error {
	s, err := m.Status(ctx)
	if err != nil {
		return err
	}
	var n int64
	for _, k := range s.Origin.Requests {
		n += k
	}
	files := 0
	for _, what := range have {
		if what != "dir" {
			files++
		}
	}
	r.cells[requestsColumn] = fmt.Sprintf("%d/%d", n, files)
	return nil
}

// A save is done again, elsewhere in the mount, until the worker was killed often enough under it.
const (
	wantKills = 2
	maxSaves  = 4
)

// killedSaveLoad saves while the worker is killed, and loads what was saved.
func (r *writeRunner) killedSaveLoad(ctx context.Context, m *mountpoint.Mount) (dirs []string, err error) {
	err = r.step("killed-save", func() error {
		s, err := m.Status(ctx)
		if err != nil {
			return err
		}
		keeper, err := load.Keeper(s.WorkerPID)
		if err != nil {
			return err
		}
		kills := 0
		for i := 0; i < maxSaves && kills < wantKills; i++ {
			d := fmt.Sprint(i)
			if err := os.Mkdir(filepath.Join(m.Dir, d), 0o755); err != nil {
				return err
			}
			side := filepath.Join(r.work, "killed-side"+d)
			n, err := r.whileKilled(keeper, m.Dir, filepath.Join(side, "begun"), func() error {
				return r.script(ctx, filepath.Join(m.Dir, d), "save", side, true)
			})
			kills += n
			r.kills = kills
			if err != nil {
				return fmt.Errorf("with %d kills of the worker: %w", n, err)
			}
			dirs = append(dirs, d)
		}
		if kills == 0 {
			return fmt.Errorf("%d saves were over before the worker could be killed", maxSaves)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return dirs, r.step("killed-load", func() error {
		for _, d := range dirs {
			if err := r.script(ctx, filepath.Join(m.Dir, d), "load", filepath.Join(r.work, "killed-side"+d), true); err != nil {
				return err
			}
		}
		return nil
	})
}

// whileKilled runs f, and kills the worker soon after the file begun is there and then again and
// again while it is there. It returns how often.
func (r *writeRunner) whileKilled(keeper int, dir, begun string, f func() error) (kills int, err error) {
	const tick = 20 * time.Millisecond
	first := 5 * tick
	done, killed := make(chan struct{}), make(chan error, 1)
	go func() {
		var next time.Time
		for {
			select {
			case <-done:
				killed <- nil
				return
			case <-time.After(tick):
			}
			if _, err := os.Stat(begun); err != nil {
				continue
			}
			if next.IsZero() {
				next = time.Now().Add(first)
			}
			if time.Now().Before(next) {
				continue
			}
			if _, err := load.KillWorker(keeper, dir, false); err != nil {
				killed <- err
				return
			}
			kills++
			next = time.Now().Add(r.c.killEvery)
		}
	}()
	err = f()
	close(done)
	return kills, errors.Join(err, <-killed)
}

// step is a phase with its cell of the table.
func (r *writeRunner) step(name string, f func() error) error {
	err := r.timed(name, f)
	if err != nil {
		r.cells[name] = "FAIL"
		return fmt.Errorf("%s: %w", name, err)
	}
	r.cells[name] = fmt.Sprintf("%.1f s", r.phases[len(r.phases)-1].took.Seconds())
	return nil
}

// script runs the client's script. Compiled modules are kept in the environment of the clients,
// which would take minutes to compile for each run.
func (r *writeRunner) script(ctx context.Context, root, phase, side string, metadata bool) error {
	home := mustDir(r.work, "home")
	env := []string{
		"PYTHONPATH=" + strings.Join(r.layers, ":"), "PYTHONDONTWRITEBYTECODE=",
		"PYTHONPYCACHEPREFIX=" + filepath.Join(filepath.Dir(filepath.Dir(r.python)), "pycache"),
		"HOME=" + home, "HF_HOME=" + home, "XDG_CACHE_HOME=" + home, "XDG_CONFIG_HOME=" + home,
		"HF_HUB_OFFLINE=1", "WANDB_MODE=offline", "JAX_PLATFORMS=cpu", "CUDA_VISIBLE_DEVICES=", "OMP_NUM_THREADS=1",
		"TF_CPP_MIN_LOG_LEVEL=2", "LC_ALL=C.UTF-8",
	}
	args := []string{filepath.Join(r.scripts, "write_"+r.name+".py"), root, "--phase", phase, "--side", side}
	if metadata {
		args = append(args, "--metadata")
	}
	return r.execute(ctx, slices.Clip(env), args...)
}
