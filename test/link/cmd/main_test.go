package main

import (
	"bufio"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"
)

func TestRun(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "answer")
	}))
	defer srv.Close()
	pr, pw := io.Pipe()
	signals := make(chan os.Signal)
	done := make(chan error, 1)
	go func() {
		err := run([]string{"-target", strings.TrimPrefix(srv.URL, "http://"), "-first-byte", "1ms",
			"-per-conn", "64MiB", "-total", "0"}, pw, io.Discard, signals)
		pw.Close()
		done <- err
	}()
	out := bufio.NewScanner(pr)
	if !out.Scan() {
		t.Fatal("no address was printed")
	}
	addr := out.Text()
	fetch := func() error {
		resp, err := http.Get("http://" + addr + "/")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		_, err = io.ReadAll(resp.Body)
		return err
	}
	if err := fetch(); err != nil {
		t.Error(err)
	}
	signals <- syscall.SIGUSR1
	signals <- syscall.SIGURG // taken only after the one before was acted on: ends run
	if !out.Scan() || !strings.Contains(out.Text(), `"Requests":1`) {
		t.Errorf("counters: %q", out.Text())
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := fetch(); err == nil {
		t.Error("no error after the end")
	}
}

func TestRunBadArguments(t *testing.T) {
	for _, args := range [][]string{{}, {"-target", "x"}, {"-target", "a:1", "-per-conn", "fast"}} {
		if err := run(args, io.Discard, io.Discard, nil); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
}
