package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// flagValues are one valid value, other than the default, for each flag.
func flagValues() map[string]string {
	return map[string]string{
		"cache-dir": "/nvme/a", "cache-size": "123456789", "memory": "300MiB", "passthrough": "off",
		"endpoint-url": "http://localhost:9000", "region": "eu-west-1", "profile": "p", "no-sign-request": "true", "no-resend": "true",
		"path-style": "on", "requester-pays": "true", "sse-c-key-file": "/etc/key", "ttl": "1h30m0s", "stale-if-error": "10m0s", "immutable": "true",
		"read-only": "true", "allow-other": "true", "uid": "1234", "gid": "4321", "umask": "027", "small-object": "0",
		"read-ahead": "512KiB", "options": "noexec", "foreground": "true", "log-file": "/var/log/leatfs.log",
		"log-level": "debug", "log-json": "true", "metrics-addr": "127.0.0.1:9100", "fuse-debug": "true",
		"max-requests": "17", "list-parallel": "3", "origin-timeout": "7s",
		"protect": "foreign", "conflicts": "last-wins", "fsync": "remote", "close": "remote",
		"policy": "/ckpt/**:fsync=remote:close=local", "part-size": "32MiB", "upload-parallel": "7", "reuse-parts": "true", "read-metadata": "true",
	}
}

func newFlags() (*mountConfig, *pflag.FlagSet) {
	c, f := &mountConfig{}, pflag.NewFlagSet("mount", pflag.ContinueOnError)
	c.flags(f)
	return c, f
}

func load(t *testing.T, text string, flags *pflag.FlagSet) (map[string]string, error) {
	t.Helper()
	p := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return loadConfig(p, flags)
}

// TestConfigTakesEveryFlag, and a value means in the file what it means on the command line.
func TestConfigTakesEveryFlag(t *testing.T) {
	_, want := newFlags()
	_, got := newFlags()
	given := flagValues()
	var text strings.Builder
	want.VisitAll(func(f *pflag.Flag) {
		if f.Name == "config" {
			return
		}
		v, ok := given[f.Name]
		if !ok {
			t.Errorf("the test has no value for --%s", f.Name)
			return
		}
		if err := want.Set(f.Name, v); err != nil {
			t.Fatal(err)
		}
		text.WriteString(f.Name + ": " + v + "\n")
	})
	args, err := load(t, text.String()+"source: s3://b/p\nmountpoint: '/mnt/with space'\n", got)
	if err != nil {
		t.Fatal(err)
	}
	if args["source"] != "s3://b/p" || args["mountpoint"] != "/mnt/with space" {
		t.Errorf("arguments %q", args)
	}
	want.VisitAll(func(f *pflag.Flag) {
		if g := got.Lookup(f.Name).Value.String(); g != f.Value.String() {
			t.Errorf("%s: %q by the file, %q by the command line", f.Name, g, f.Value.String())
		}
	})
}

// TestAgain: the daemon in the background gets the same settings.
func TestAgain(t *testing.T) {
	c, f := newFlags()
	for k, v := range flagValues() {
		if err := f.Set(k, v); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Set("cache-dir", "/nvme/b, c"); err != nil {
		t.Fatal(err)
	}
	c.source, c.mountpoint = "s3://b", "/mnt"
	again, g := newFlags()
	if err := g.Parse(c.again(f)); err != nil {
		t.Fatal(err)
	}
	if args := g.Args(); len(args) != 3 || args[0] != "mount" || args[1] != "s3://b" || args[2] != "/mnt" {
		t.Errorf("arguments %q", g.Args())
	}
	f.VisitAll(func(x *pflag.Flag) {
		if got := g.Lookup(x.Name).Value.String(); got != x.Value.String() {
			t.Errorf("%s: %q, the daemon gets %q", x.Name, x.Value, got)
		}
	})
	if again.cacheSize != 123456789 {
		t.Errorf("--cache-size 123456789 becomes %d", again.cacheSize)
	}
}

// TestConfigText: the forms that a value may have.
func TestConfigText(t *testing.T) {
	for text, want := range map[string]string{
		"region: eu":             "eu",
		"region: \"eu\"":         "eu",
		"region: 007":            "007",
		"region: 1e3":            "1e3",
		"region: true":           "true",
		"region: eu # a comment": "eu",
		"# only\nregion: eu\n":   "eu",
		"---\nregion: eu\n":      "eu",
		"{region: eu}":           "eu",
		"region: |\n  eu\n":      "eu",
		"":                       "",
		"# nothing\n":            "",
	} {
		c, f := newFlags()
		if _, err := load(t, text, f); err != nil || c.region != want {
			t.Errorf("%q gives %q, %v; want %q", text, c.region, err, want)
		}
	}
	c, f := newFlags()
	if err := f.Set("region", "line"); err != nil {
		t.Fatal(err)
	}
	if _, err := load(t, "region: file\ncache-dir: [/a, /b]\n", f); err != nil || c.region != "line" || len(c.cacheDirs) != 2 {
		t.Errorf("%v %q %q", err, c.region, c.cacheDirs)
	}
}

func FuzzConfig(f *testing.F) {
	for _, s := range []string{"a: b", "region: [a, {b: c}]", "region: &x y\nprofile: *x", "<<: {region: a}", "? region\n: eu", "region: !!str 5", "- a", "\x00", "a: |\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		_, flags := newFlags()
		_, err := load(t, text, flags) // must not panic
		if err != nil && strings.Contains(singleLine(err), "\n") {
			t.Errorf("error of several lines: %q", err)
		}
	})
}

func TestSize(t *testing.T) {
	for text, want := range map[string]size{"0": 0, "1": 1, "1KiB": 1024, "1k": 1024, "1kb": 1000, "1.5GiB": 3 << 29, " 20 GB ": 20e9, "1T": 1 << 40} {
		var s size
		if err := s.Set(text); err != nil || s != want {
			t.Errorf("%q is %d, %v; want %d", text, s, err, want)
		}
	}
	for _, text := range []string{"", "x", "-1", "1XB", "1e99", "NaN", "Inf", "9999999TiB", "1 2", "."} {
		var s size
		if err := s.Set(text); err == nil {
			t.Errorf("%q is taken for %d", text, s)
		}
	}
	for _, n := range []size{0, 1, 1023, 1 << 20, 1<<20 + 1, 123456789, 3 << 29, 1 << 50} {
		var back size
		if err := back.Set(n.String()); err != nil || back != n {
			t.Errorf("%d is written %q, which is %d (%v)", n, n.String(), back, err)
		}
	}
}
