package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
)

// program is a helper that runs.
type program struct {
	cmd            *exec.Cmd
	stdout, stderr bytes.Buffer
}

func newProgram(cmd *exec.Cmd) *program {
	p := &program{cmd: cmd}
	cmd.Stdout, cmd.Stderr = &p.stdout, &p.stderr
	return p
}

// wait waits for its end and returns what it did.
func (p *program) wait() (res Result, err error) {
	if err := p.cmd.Wait(); err != nil {
		return res, fmt.Errorf("bench %s: %w: %s", p.cmd.Args[1], err, strings.TrimSpace(p.stderr.String()))
	}
	if err := json.Unmarshal(p.stdout.Bytes(), &res); err != nil {
		return res, fmt.Errorf("bench %s: %w", p.cmd.Args[1], err)
	}
	return res, nil
}

// cpu is what it used, in seconds; after wait.
func (p *program) cpu() float64 {
	return (p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()).Seconds()
}
