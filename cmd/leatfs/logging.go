package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// newLogger makes the program's logger. Records go to w as text, or as JSON.
func newLogger(w io.Writer, level string, json bool) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, usageError{fmt.Errorf("--log-level %q: use debug, info, warn or error", level)}
	}
	opt := &slog.HandlerOptions{Level: l}
	if json {
		return slog.New(slog.NewJSONHandler(w, opt)), nil
	}
	return slog.New(slog.NewTextHandler(w, opt)), nil
}

// logFile is the log of a daemon in the background. It keeps itself short: beyond maxLog it
// is renamed to NAME.1, over the one before, and begun anew. The process's standard error
// goes there too, so that a panic is found in it. Safe for parallel use.
type logFile struct {
	path  string
	moved func(*os.File) error // tells who else writes to the log that it is another file; set before the first record

	mu   sync.Mutex
	file *os.File // by mu
	size int64    // by mu
}

// maxLog is the size in bytes at which a log file is turned over.
const maxLog = 16 << 20

func openLog(path string) (*logFile, error) {
	l := &logFile{path: path}
	if err := l.open(); err != nil {
		return nil, fmt.Errorf("log file %s cannot be written: %w; choose another with --log-file", path, errors.Unwrap(err))
	}
	return l, nil
}

func (l *logFile) open() error {
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err == nil {
		err = os.NewSyscallError("dup3", unix.Dup3(int(f.Fd()), int(os.Stderr.Fd()), 0))
	}
	if err != nil {
		_ = f.Close()
		return err
	}
	l.file, l.size = f, st.Size()
	return nil
}

// Write implements io.Writer.
func (l *logFile) Write(p []byte) (int, error) {
	n, turned, err := l.write(p)
	if turned != nil && l.moved != nil {
		_ = l.moved(turned) // without it, its lines go to the old file
	}
	return n, err
}

// write returns the file also when it has become another.
func (l *logFile) write(p []byte) (n int, turned *os.File, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size > maxLog {
		old := l.file
		if err := os.Rename(l.path, l.path+".1"); err == nil && l.open() == nil {
			_ = old.Close()
			turned = l.file
		}
	}
	n, err = l.file.Write(p)
	l.size += int64(n)
	return n, turned, err
}

// Close closes the file; later records are lost.
func (l *logFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file.Close()
}
