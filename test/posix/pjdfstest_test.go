package posix

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// pjdfstestWait is how long the whole suite may take: on a disk it takes seconds.
const pjdfstestWait = 5 * time.Minute

// noLinkMax makes as many hard links as there may be. The C library knows that number of ext4 and
// few others, and elsewhere the suite leaves the test out.
const noLinkMax = "link::link_count_max"

// TestPjdfstest runs all of pjdfstest. A mount passes every test but those in refused.txt; one
// of those that passes is an error too, so that the list stays true.
func TestPjdfstest(t *testing.T) {
	list, err := refused()
	if err != nil {
		t.Fatal(err)
	}
	modes(t, leatfsRace, func(w *world) {
		if *onDir != "" {
			list = nil
		}
		results, err := pjdfstest(w)
		judge(w.t, results, list)
		if err != nil {
			w.t.Fatal(err)
		}
		w.empty()
	})
}

// judge compares results with the list, and prints how many there are of each kind.
func judge(t *testing.T, results []result, list map[string]string) {
	t.Helper()
	count := map[string]int{}
	seen := map[string]bool{}
	for _, r := range results {
		_, expected := list[r.name]
		kind := r.status
		switch {
		case r.status == "ok" && expected:
			t.Errorf("%s passes: it is in refused.txt, take it out", r.name)
		case r.status == "ok":
		case r.status == "skipped" && (*onDir != "" || r.name == noLinkMax):
			t.Logf("%s was not run: %s", r.name, r.detail)
		case r.status == "skipped":
			t.Errorf("%s was not run: %s", r.name, r.detail)
		case expected:
			kind = "refused"
		default:
			t.Errorf("%s failed: %s", r.name, r.detail)
		}
		count[kind]++
		seen[r.name] = true
	}
	for name := range list {
		if !seen[name] {
			t.Errorf("refused.txt: pjdfstest has no test %s", name)
		}
	}
	fmt.Printf("%s: %d passed, %d refused as documented, %d failed, %d skipped\n", t.Name(), count["ok"], count["refused"], count["FAILED"], count["skipped"])
}

// result is what became of one test.
type result struct {
	name   string
	status string // "ok", "skipped" or "FAILED"
	detail string // why
}

// pjdfstest runs the suite. The error says that it did not come to its end.
//
// Tests that make the file system read-only for a moment run in a process each: the others leave
// files open for writing until their process ends, and then the kernel says that it is busy.
func pjdfstest(w *world) ([]result, error) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), pjdfstestWait)
	defer cancel()
	results, err := suite(ctx, w, false)
	if err != nil || *onDir != "" {
		return results, err
	}
	for i, r := range results {
		tries, remount := 0, false
		switch {
		case r.status == "skipped" && strings.Contains(r.detail, "allow_remount"):
			tries, remount = 1, true
		case r.status == "FAILED" && r.name == cutsItself:
			tries = 5
		}
		for ; tries > 0 && results[i].status != "ok"; tries-- {
			if results[i], err = alone(ctx, w, remount, r.name); err != nil {
				return results, err
			}
		}
	}
	return results, nil
}

// cutsItself starts a program and at once opens its file with O_RDONLY|O_TRUNC. The kernel has a FUSE file system cut the file
// before it looks whether somebody executes it. Where the program has not come to its first line by then, nobody does any more.
const cutsItself = "open::etxtbsy"

// alone runs one test.
func alone(ctx context.Context, w *world, remount bool, name string) (result, error) {
	w.t.Helper()
	one, err := suite(ctx, w, remount, "--exact", "pjdfstest::tests::"+name)
	if err != nil {
		return result{}, err
	}
	if len(one) != 1 || one[0].name != name {
		return result{}, fmt.Errorf("pjdfstest was to run %s alone, and ran %d tests", name, len(one))
	}
	return one[0], nil
}

// suite runs pjdfstest once. With remount it may make the file system read-only.
func suite(ctx context.Context, w *world, remount bool, args ...string) ([]result, error) {
	w.t.Helper()
	config := filepath.Join(w.base, "pjdfstest.toml")
	if err := os.WriteFile(config, []byte(configuration(w.t, remount)), 0o644); err != nil {
		return nil, err
	}
	other := w.base // on another file system
	if *onDir != "" {
		other = "/dev/shm"
	}
	cmd := exec.CommandContext(ctx, tool(w.t, "pjdfstest"), append([]string{"-c", config, "-p", w.dir, "-s", other}, args...)...)
	cmd.Env = append(os.Environ(), "NO_COLOR=1", "RUST_BACKTRACE=1", "PATH="+mountDir(w)+":"+os.Getenv("PATH"))
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	err := cmd.Run()
	results := parse(out.String())
	if ctx.Err() != nil {
		return results, fmt.Errorf("pjdfstest had not ended after %v; the last result was of %s", pjdfstestWait, last(results))
	}
	m := summary.FindStringSubmatch(out.String())
	if m == nil {
		return results, fmt.Errorf("pjdfstest broke off (%w) after %s: %s", err, last(results), stderr.String())
	}
	if total := fmt.Sprint(len(results)); m[1] != total {
		return results, fmt.Errorf("pjdfstest ran %s tests, but the results of %s were understood", m[1], total)
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) { // it exits with 1 when a test failed
		return results, err
	}
	return results, nil
}

var (
	summary = regexp.MustCompile(`(?m)^Summary: .* (\d+) total$`)
	verdict = regexp.MustCompile(`^([a-z0-9_:]+) +(ok|skipped|FAILED)$`)
	place   = regexp.MustCompile(`(?m)^ +at .*/src/tests/(\S+)$`)
)

// parse reads what pjdfstest prints: a line for each test, and below it what was wrong.
func parse(out string) (results []result) {
	var detail []string
	end := func() {
		if len(results) > 0 {
			results[len(results)-1].detail = explain(strings.Join(detail, "\n"))
		}
		detail = nil
	}
	for line := range strings.Lines(out) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "Summary: ") {
			break
		}
		if m := verdict.FindStringSubmatch(line); m != nil {
			end()
			results = append(results, result{name: m[1], status: m[2]})
			continue
		}
		detail = append(detail, line)
	}
	end()
	return results
}

// explain makes one line of a message and a backtrace: the message, and where in the suite.
func explain(detail string) string {
	message, trace, _ := strings.Cut(detail, "Backtrace:\n")
	s := strings.Join(strings.Fields(message), " ")
	var at []string
	for _, m := range place.FindAllStringSubmatch(trace, -1) {
		if !slices.Contains(at, m[1]) {
			at = append(at, m[1])
		}
	}
	if len(at) > 0 {
		s += " (" + strings.Join(at, ", ") + ")"
	}
	return s
}

func last(results []result) string {
	if len(results) == 0 {
		return "no test"
	}
	return results[len(results)-1].name
}

// configuration lets the suite run every test that it has for Linux. The two users that it
// becomes are ones that every Linux has.
func configuration(t *testing.T, remount bool) string {
	t.Helper()
	var users []string
	for _, name := range []string{"nobody", "daemon"} {
		u, err := user.Lookup(name)
		if err != nil {
			t.Fatalf("pjdfstest becomes the users nobody and daemon: %v", err)
		}
		g, err := user.LookupGroupId(u.Gid)
		if err != nil {
			t.Fatalf("the group of user %s: %v", name, err)
		}
		users = append(users, fmt.Sprintf("[%q, %q]", name, g.Name))
	}
	return `[features]
posix_fallocate = {}
rename_ctime = {}
stat_st_birthtime = {}
utime_now = {}
utimensat = {}

[settings]
naptime = 0.02
allow_remount = ` + fmt.Sprint(remount) + `

[dummy_auth]
entries = [` + strings.Join(users, ", ") + "]\n"
}

// mountDir makes a directory with a program "mount" in it, which the suite calls to make the
// mount read-only for a moment. mount(8) would give that to the helper for FUSE file systems,
// which mounts anew; the kernel can do it by itself.
func mountDir(w *world) string {
	w.t.Helper()
	real, err := exec.LookPath("mount")
	if err != nil {
		w.t.Fatal(err)
	}
	dir := filepath.Join(w.base, "bin")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		w.t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\nexec %s -i \"$@\"\n", real)
	if err := os.WriteFile(filepath.Join(dir, "mount"), []byte(script), 0o755); err != nil {
		w.t.Fatal(err)
	}
	return dir
}

// empty checks that what the suite removed is gone, from the mount and in the end from the
// bucket.
func (w *world) empty() {
	w.t.Helper()
	names, err := os.ReadDir(w.dir)
	if err != nil {
		w.t.Error(err)
	}
	if len(names) > 0 {
		w.t.Errorf("%d names are left in %s, such as %q", len(names), w.dir, names[0].Name())
	}
	if w.server == nil {
		return
	}
	w.eventually("the bucket is empty", func() error {
		keys, err := w.keys()
		if err == nil && len(keys) > 0 {
			err = fmt.Errorf("%d objects are left: %q", len(keys), keys[:min(30, len(keys))])
		}
		return err
	})
}

// eventually waits for what the daemon does by and by; it is polled because there is nothing to
// wait on.
func (w *world) eventually(what string, f func() error) {
	w.t.Helper()
	const wait = 60 * time.Second
	for deadline := time.Now().Add(wait); ; time.Sleep(100 * time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			w.t.Errorf("not so after %v: %s: %v", wait, what, err)
			return
		}
	}
}
