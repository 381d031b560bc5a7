package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/leatfs/leatfs/fs"
)

// TestPolicy: what a policy says, and what is none.
func TestPolicy(t *testing.T) {
	for text, want := range map[string]fs.Policy{
		"/ckpt/**:fsync=remote":             {Pattern: "/ckpt/**", FsyncRemote: true},
		"/ckpt/**:close=remote:fsync=local": {Pattern: "/ckpt/**", CloseRemote: true},
		"*.pt:fsync=remote:close=remote":    {Pattern: "*.pt", FsyncRemote: true, CloseRemote: true},
		"/a:b=c/*:fsync=remote":             {Pattern: "/a:b=c/*", FsyncRemote: true},
		"/**:fsync=local":                   {Pattern: "/**"},
	} {
		if got, err := parsePolicy(text, fs.Policy{}); err != nil || got != want {
			t.Errorf("%q is %+v, %v; want %+v", text, got, err, want)
		}
	}
	if got, err := parsePolicy("/x:fsync=local", fs.Policy{FsyncRemote: true, CloseRemote: true}); err != nil || got != (fs.Policy{Pattern: "/x", CloseRemote: true}) {
		t.Errorf("what is not said is as for all paths: %+v %v", got, err)
	}
	for text, want := range map[string]string{
		"":                           "names no path",
		"/ckpt/**":                   "says nothing",
		":fsync=remote":              "names no path",
		"/a:fsync=soon":              "use local or remote",
		"/a:fsync=local:fsync=local": "twice",
		"/a*/**:fsync=remote":        "plain path",
		"a/b:fsync=remote":           "begins with",
		"/[:fsync=remote":            "no pattern",
	} {
		if got, err := parsePolicy(text, fs.Policy{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is taken for %+v, %v; want an error with %q", text, got, err, want)
		}
	}
}

// TestPolicies: in a configuration file, and what the file system gets of them.
func TestPolicies(t *testing.T) {
	const text = "policies:\n  - path: /ckpt/**\n    fsync: remote\n    close: local\n  - {path: '*.log', close: local}\nclose: remote\n"
	c, f := newFlags()
	if _, err := load(t, text, f); err != nil {
		t.Fatal(err)
	}
	if want := []string{"/ckpt/**:fsync=remote:close=local", "*.log:close=local"}; !slices.Equal(c.policies, want) {
		t.Errorf("policies %q, want %q", c.policies, want)
	}
	got, err := c.policyList()
	if want := []fs.Policy{{Pattern: "/ckpt/**", FsyncRemote: true}, {Pattern: "*.log"}, {Pattern: "/**", CloseRemote: true}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%+v %v, want %+v", got, err, want)
	}
	again, g := newFlags()
	if err := g.Parse(c.again(f)); err != nil || !slices.Equal(again.policies, c.policies) {
		t.Errorf("the next worker gets %q, %v", again.policies, err)
	}
	c, f = newFlags()
	if err := f.Set("policy", "/x:fsync=remote"); err != nil {
		t.Fatal(err)
	}
	if _, err := load(t, text, f); err != nil || !slices.Equal(c.policies, []string{"/x:fsync=remote"}) {
		t.Errorf("the command line does not go before the file: %q %v", c.policies, err)
	}
	for text, want := range map[string]string{
		"policies: /ckpt/**":                    "must be a list",
		"policies: [/ckpt/**]":                  "must be a list",
		"policies:\n  - way: /x":                "no \"way\"",
		"policies:\n  - path: /x\n    path: /y": "",
		"policies:\n  - path: [/x]":             "path:",
		"policy: '/x:fsync=remote'\npolicies:\n  - {path: /y, fsync: remote}": "given twice",
	} {
		_, f := newFlags()
		if _, err := load(t, text, f); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want an error with %q", text, err, want)
		}
	}
}

// TestWriteFlags: what contradicts itself or cannot be.
func TestWriteFlags(t *testing.T) {
	for flags, want := range map[string]string{
		"--protect=all":       "--protect",
		"--conflicts=mine":    "--conflicts",
		"--fsync=never":       "--fsync",
		"--close=x":           "--close",
		"--part-size=1MiB":    "--part-size",
		"--upload-parallel=0": "--upload-parallel",
		"--policy=/x":         "--policy",
		"--protect=foreign --conflicts=last-wins": "contradict",
	} {
		c, f := newFlags()
		if err := f.Parse(strings.Fields(flags)); err != nil {
			t.Fatal(err)
		}
		if err := c.checkFlags(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", flags, err, want)
		}
	}
	c, f := newFlags()
	if err := f.Parse([]string{"--protect=foreign", "--part-size=8MiB", "--upload-parallel=3", "--reuse-parts", "--read-metadata", "--fsync=remote", "--read-only", "--cache-dir=/c"}); err != nil {
		t.Fatal(err)
	}
	if err := c.checkFlags(); err != nil {
		t.Fatal(err)
	}
	o := c.fsOptions()
	if !o.Protect || o.LastWins || o.PartSize != 8<<20 || o.UploadParallel != 3 || !o.ReuseParts || !o.Metadata || !o.ReadOnly || o.Scratch != "/c" ||
		!slices.Equal(o.Policies, []fs.Policy{{Pattern: "/**", FsyncRemote: true}}) {
		t.Errorf("%+v", o)
	}
}

// TestBelowMount: how a path is named.
func TestBelowMount(t *testing.T) {
	for file, want := range map[string]string{
		"/mnt/x/a/b": "/a/b", "/mnt/x/a/../b": "/b", "a/b": "/a/b", "./a": "/a", "/y/z": "/y/z", "": "", "/mnt/x": "/",
	} {
		got, err := belowMount("/mnt/x", file)
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%q is %q, %v; want %q", file, got, err, want)
		}
	}
}
