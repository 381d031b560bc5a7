package record

import (
	"errors"
	"fmt"
	"net/rpc"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// Disk is a recording disk that another process serves. All methods may be called in parallel.
type Disk struct {
	dir    string
	sector uint32
	cmd    *exec.Cmd
	client *rpc.Client
	tag    string
	said   *os.File // stderr of the process
}

// Start begins a process that serves a disk of size bytes, which writes units of unit bytes, 512 or 4096, whole
// or not at all. dir is an empty directory for what it needs. The calling program must call
// Serve at its start. Only root may.
func Start(dir string, size, unit int64) (*Disk, error) {
	if os.Getenv(envServe) != "" {
		return nil, errors.New("recording disk: this program does not call record.Serve at its start")
	}
	if err := Sweep(); err != nil {
		return nil, fmt.Errorf("recording disk: taking away what an earlier run left: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	said, err := os.Create(filepath.Join(dir, "said"))
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d %s", envServe, size, unit, dir))
	cmd.Stderr = said
	// Not in the group of the tests: it outlives them, to clean up.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	d := &Disk{dir: dir, sector: uint32(unit), cmd: cmd, said: said, client: rpc.NewClient(stdio{out, in})}
	d.tag = tag(cmd.Process.Pid)
	if _, err := d.Position(); err != nil { // answered once it is mounted
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// PID is the number of the process that serves the disk.
func (d *Disk) PID() int { return d.cmd.Process.Pid }

// Marks is a file that turns what is written to it into marks, one fact a write: for other processes.
func (d *Disk) Marks() string { return filepath.Join(mountpoint(d.dir), markName) }

// Attach makes a loop device over the disk.
func (d *Disk) Attach() (*Loop, error) {
	return attach(filepath.Join(mountpoint(d.dir), diskName), d.sector, d.tag)
}

// AttachCut makes a loop device over the disk as it is after a cut. drop forgets that disk: to be called
// after the device has gone.
func (d *Disk) AttachCut(c Cut) (l *Loop, drop func() error, err error) {
	var name string
	if err := d.call("Cut", c, &name); err != nil {
		return nil, nil, fmt.Errorf("%v: %w", c, err)
	}
	drop = func() error { return d.call("Drop", name, &Nothing{}) }
	l, err = attach(filepath.Join(mountpoint(d.dir), name), d.sector, d.tag)
	if err != nil {
		return nil, nil, errors.Join(err, drop())
	}
	return l, drop, nil
}

// Mark notes a fact that is so from now on.
func (d *Disk) Mark(text string) error { return d.call("Mark", text, &Nothing{}) }

// Position is how many events there are.
func (d *Disk) Position() (n int, err error) {
	err = d.call("Position", Nothing{}, &n)
	return n, err
}

// Events returns the events from index from on.
func (d *Disk) Events(from int) (out []Event, err error) {
	err = d.call("Events", from, &out)
	return out, err
}

func (d *Disk) call(method string, arg, result any) error {
	if err := d.client.Call("Control."+method, arg, result); err != nil {
		return fmt.Errorf("recording disk: %w", err)
	}
	return nil
}

// Close ends the process that serves. What is still mounted is taken away by force.
func (d *Disk) Close() error {
	err := d.client.Close()
	done := make(chan error, 1)
	go func() { done <- d.cmd.Wait() }()
	select {
	case werr := <-done:
		if werr != nil {
			b, _ := os.ReadFile(d.said.Name())
			err = errors.Join(err, fmt.Errorf("recording disk: %w: %s", werr, b))
		}
	case <-time.After(30 * time.Second):
		err = errors.Join(err, errors.New("recording disk: its process did not end within 30 s"), d.cmd.Process.Kill())
		<-done
		err = errors.Join(err, Sweep())
	}
	return errors.Join(err, d.said.Close())
}
