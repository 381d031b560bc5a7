package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

func TestHelperArgs(t *testing.T) {
	const src, mnt = "s3://b/p", "/mnt"
	for _, x := range []struct {
		name string
		argv []string // after the name
		want []string // after "mount"
		err  string   // part of the one line
	}{
		{name: "bare", argv: []string{src, mnt}, want: []string{src, mnt}},
		{name: "as mount(8) calls it", argv: []string{src, mnt, "-o", "rw,_netdev,nofail,x-systemd.automount"},
			want: []string{src, mnt, "--options=rw"}},
		{name: "flags", argv: []string{src, mnt, "-o", "cache-dir=/x,config=/etc/leatfs/x.yaml,endpoint-url=http://h:1/?a=b"},
			want: []string{src, mnt, "--cache-dir=/x", "--config=/etc/leatfs/x.yaml", "--endpoint-url=http://h:1/?a=b"}},
		{name: "repeated", argv: []string{src, mnt, "-o", "cache-dir=/x,cache-dir=/y"}, want: []string{src, mnt, "--cache-dir=/x", "--cache-dir=/y"}},
		{name: "boolean", argv: []string{src, mnt, "-o", "no-sign-request,immutable=false"},
			want: []string{src, mnt, "--no-sign-request", "--immutable=false"}},
		{name: "underscores", argv: []string{src, mnt, "-o", "allow_other,path_style=on,log-json"},
			want: []string{src, mnt, "--allow-other", "--path-style=on", "--log-json"}},
		{name: "read-only", argv: []string{"-r", src, mnt}, want: []string{src, mnt, "--read-only"}},
		{name: "ro", argv: []string{src, mnt, "-o", "ro"}, want: []string{src, mnt, "--options=ro"}},
		{name: "of the kernel", argv: []string{src, mnt, "-o", "noexec,noatime,nosuid,nodev"},
			want: []string{src, mnt, "--options=noexec", "--options=noatime", "--options=nosuid", "--options=nodev"}},
		{name: "for others", argv: []string{src, mnt, "-o", "defaults,noauto,user=joe,users,owner,group,comment=x,x-gvfs-name=a,,"},
			want: []string{src, mnt}},
		{name: "together", argv: []string{src, mnt, "-nvo", "memory=1GiB", "-t", "fuse.leatfs"}, want: []string{src, mnt, "--memory=1GiB"}},
		{name: "value joined", argv: []string{"-omemory=1GiB", "-tfuse.leatfs", "-w", src, mnt}, want: []string{src, mnt, "--memory=1GiB"}},
		{name: "several -o", argv: []string{src, mnt, "-o", "uid=1", "-o", "gid=2"}, want: []string{src, mnt, "--uid=1", "--gid=2"}},
		{name: "comma escaped", argv: []string{src, mnt, "-o", `cache-dir=/a\,b,uid=1`}, want: []string{src, mnt, "--cache-dir=/a,b", "--uid=1"}},
		{name: "comma quoted", argv: []string{src, mnt, "-o", `cache-dir="/a,b",uid=1`}, want: []string{src, mnt, "--cache-dir=/a,b", "--uid=1"}},
		{name: "backslash and quote", argv: []string{src, mnt, "-o", `cache-dir=/a\\b\"c\d`}, want: []string{src, mnt, `--cache-dir=/a\b"c\d`}},
		{name: "equals sign in value", argv: []string{src, mnt, "-o", "log-file=/a=b"}, want: []string{src, mnt, "--log-file=/a=b"}},
		{name: "label", argv: []string{src, mnt, "-o", "context=system_u:object_r:x_t:s0"},
			want: []string{src, mnt, "--options=context=system_u:object_r:x_t:s0"}},
		{name: "sloppy", argv: []string{"-s", src, mnt, "-o", "quota,uid=1"}, want: []string{src, mnt, "--uid=1"}},
		{name: "fake", argv: []string{src, mnt, "-f", "-o", "uid=1"}, want: nil},

		{name: "unknown", argv: []string{src, mnt, "-o", "cache-dirr=/x"}, err: `mount option "cache-dirr=/x" is not known; the options are`},
		{name: "unknown, fake", argv: []string{src, mnt, "-f", "-o", "quota"}, err: `mount option "quota" is not known`},
		{name: "refused", argv: []string{src, mnt, "-o", "suid"}, err: "leatfs always mounts nosuid,nodev"},
		{name: "no value", argv: []string{src, mnt, "-o", "cache-dir"}, err: `mount option "cache-dir" wants a value`},
		{name: "foreground", argv: []string{src, mnt, "-o", "foreground"}, err: "not for mount(8)"},
		{name: "options", argv: []string{src, mnt, "-o", "options=ro"}, err: "not for mount(8)"},
		{name: "open quote", argv: []string{src, mnt, "-o", `cache-dir="/x`}, err: "not closed"},
		{name: "no mount point", argv: []string{src}, err: "what to mount and where"},
		{name: "too many", argv: []string{src, mnt, "more"}, err: "what to mount and where"},
		{name: "unknown letter", argv: []string{src, mnt, "-z"}, err: "there is no option -z"},
		{name: "value missing", argv: []string{src, mnt, "-o"}, err: "-o wants a value"},
		{name: "namespace", argv: []string{src, mnt, "-N", "/proc/1/ns/mnt"}, err: "nsenter"},
	} {
		t.Run(x.name, func(t *testing.T) {
			got, err := helperArgs(append([]string{"/sbin/mount.fuse.leatfs"}, x.argv...))
			if x.err != "" {
				if err == nil || !strings.Contains(err.Error(), x.err) {
					t.Fatalf("got %q and error %v, want an error with %q", got, err, x.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := x.want
			if want != nil {
				want = append([]string{"mount"}, want...)
			}
			if !slices.Equal(got, want) || (got == nil) != (want == nil) {
				t.Errorf("got  %q\nwant %q", got, want)
			}
		})
	}
}

// The exit codes and the one line are what mount(8) shows its user.
func TestRunAs(t *testing.T) {
	for _, x := range []struct {
		name   string
		argv   []string
		code   int
		stderr string
	}{
		{"ordinary", []string{"/usr/bin/leatfs", "version"}, exitOK, ""},
		{"ordinary, wrong", []string{"leatfs", "no-such-command"}, exitUsage, "no-such-command"},
		{"wrong option", []string{"mount.fuse.leatfs", "s3://b", "/", "-o", "quota"}, exitHelperUsage, `"quota" is not known`},
		{"wrong value", []string{"mount.leatfs", "s3://b", "/", "-o", "uid=x"}, exitHelperUsage, "uid"},
		{"its own child", []string{"/sbin/mount.fuse.leatfs", "mount", "--no-such-flag"}, exitUsage, "no-such-flag"},
		{"fails", []string{"mount.fuse.leatfs", "s3://b", "/no/such/place"}, exitHelperFailed, "/no/such/place does not exist"},
		{"fake", []string{"mount.fuse.leatfs", "s3://b", "/no/such/place", "-f"}, exitOK, ""},
	} {
		t.Run(x.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := runAs(t.Context(), x.argv, &stdout, &stderr)
			if code != x.code {
				t.Errorf("exit code %d, want %d; it said %q", code, x.code, stderr.String())
			}
			text := stderr.String()
			if !strings.Contains(text, x.stderr) || (x.stderr == "") != (text == "") || strings.Count(text, "\n") > 1 {
				t.Errorf("it said %q, want one line with %q", text, x.stderr)
			}
		})
	}
}
