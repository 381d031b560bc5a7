// Package load makes processes that use a mount as training jobs do, and check all that they
// see: every byte, every name, every errno, and how long each operation took. The processes are
// the program that uses this package, started again.
package load

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// The environment of a process of this package.
const (
	jobEnv   = "LEATFS_LOAD_JOB"
	childEnv = "LEATFS_LOAD_CHILD"
)

// Kinds are the ways of using a mount; see kinds.go.
var Kinds = []string{"seq", "random", "warm", "mmap", "walk", "storm", "hold", "fork"}

// Job is what a process does until it is told to stop.
type Job struct {
	Kind string // of Kinds
	Dir  string // the mount point
	Data Data
	Seed uint64
	// Keep true leaves pages in the kernel's cache after use.
	Keep bool
}

// Main runs a job, and does not return, if this process was started for one. A program that uses
// this package calls it first of all.
func Main() {
	if c := os.Getenv(childEnv); c != "" {
		os.Exit(child(c))
	}
	j := os.Getenv(jobEnv)
	if j == "" {
		return
	}
	var job Job
	if err := json.Unmarshal([]byte(j), &job); err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(2)
	}
	stop := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // until it is closed, also by the death of who started this
		close(stop)
	}()
	r := run(job, stop)
	if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(2)
	}
	os.Exit(0)
}

// Process is a job that runs.
type Process struct {
	job    Job
	cmd    *exec.Cmd
	stdin  io.Closer
	out    bytes.Buffer
	stderr bytes.Buffer
}

// Start starts a process for a job.
func Start(job Job) (*Process, error) {
	j, err := json.Marshal(job)
	if err != nil {
		return nil, err
	}
	p := &Process{job: job, cmd: exec.Command("/proc/self/exe")}
	p.cmd.Env = append(os.Environ(), jobEnv+"="+string(j))
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.stderr
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a load process: %w", err)
	}
	return p, nil
}

// stopWait bounds how long a process may take to end: one operation, after it was told.
const stopWait = 60 * time.Second

// Stop tells the process to end, and returns what it saw. One that hangs is killed.
func (p *Process) Stop() (*Report, error) {
	_ = p.stdin.Close() // fails when it has ended
	kill := time.AfterFunc(stopWait, func() { _ = p.cmd.Process.Kill() })
	err := p.cmd.Wait()
	if !kill.Stop() {
		return nil, fmt.Errorf("load %s: it does not end within %v", p.job.Kind, stopWait)
	}
	if err != nil {
		return nil, fmt.Errorf("load %s: %w: %s", p.job.Kind, err, p.stderr.String())
	}
	r := new(Report)
	if err := json.Unmarshal(p.out.Bytes(), r); err != nil {
		return nil, fmt.Errorf("load %s: its report: %w", p.job.Kind, err)
	}
	return r, nil
}

// PID is the number of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Processes are several jobs.
type Processes []*Process

// StartAll starts a process of each kind.
func StartAll(dir string, data Data, kinds []string, seed uint64) (ps Processes, err error) {
	for i, k := range kinds {
		p, err := Start(Job{Kind: k, Dir: dir, Data: data, Seed: seed + uint64(i)})
		if err != nil {
			_, serr := ps.Stop()
			return nil, errors.Join(err, serr)
		}
		ps = append(ps, p)
	}
	return ps, nil
}

// Stop stops all, and returns their reports.
func (ps Processes) Stop() (rs []*Report, err error) {
	for _, p := range ps {
		_ = p.stdin.Close() // all at once
	}
	for _, p := range ps {
		r, perr := p.Stop()
		if perr != nil {
			err = errors.Join(err, perr)
			continue
		}
		rs = append(rs, r)
	}
	return rs, err
}
