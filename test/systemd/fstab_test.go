package systemd

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestBoot boots with the service enabled and two lines in fstab, one of them an automount.
func TestBoot(t *testing.T) {
	w := newWorld(t)
	m := boot(t, func(root string) {
		w.install(root)
		w.enable(root)
		w.keys(root)
		w.write(root, "etc/leatfs/fstab.yaml", w.config())
		for _, d := range []string{"mnt/auto", "mnt/early"} {
			if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		const options = "_netdev,nofail,config=/etc/leatfs/fstab.yaml,allow_other"
		w.write(root, "etc/fstab",
			fmt.Sprintf("s3://%s /mnt/auto fuse.leatfs %s,noauto,x-systemd.automount 0 0", w.bucket, options),
			fmt.Sprintf("s3://%s/d1 /mnt/early fuse.leatfs %s,cache-dir=/var/cache/leatfs/other 0 0", w.bucket, options))
	})
	for _, p := range []string{mountpoint, "/mnt/early"} {
		if m.mountLine(p) == "" {
			t.Errorf("%s is not mounted after the boot", p)
		}
	}
	w.check(m, mountpoint)
	// What waits for the network's file systems waits for the service.
	if after := m.property("remote-fs.target", "After"); !strings.Contains(after, unit) {
		t.Errorf("remote-fs.target is after %q, want %s among it", after, unit)
	}
	if b, err := os.ReadFile(m.path("/mnt/early/file3")); err != nil || string(b) != string(w.files["d1/file3"]) {
		t.Errorf("/mnt/early/file3: %d bytes, %v", len(b), err)
	}

	for range 2 { // an automount that was unmounted mounts again
		if l := m.mountLine("/mnt/auto"); l != "" {
			t.Fatalf("/mnt/auto is mounted before anybody used it: %s", l)
		}
		// Only who is in the machine triggers it.
		if out := m.must("cat", "/mnt/auto/d0/file3"); out != string(w.files["d0/file3"]) {
			t.Errorf("/mnt/auto/d0/file3: wrong bytes: got %d", len(out))
		}
		w.check(m, "/mnt/auto")
		if m.mountLine("/mnt/auto") == "" {
			t.Errorf("/mnt/auto is not mounted:\n%s", m.journal("mnt-auto.mount"))
		}
		m.status("/mnt/auto")
		m.must("systemctl", "stop", "mnt-auto.mount")
		// Its daemon puts its state away.
		m.eventually("the daemon ends", func() bool { return !strings.Contains(m.processes(), "/mnt/auto") })
	}
	m.must("systemctl", "stop", "mnt-auto.automount", "mnt-early.mount", unit)
	m.eventually("all daemons end", func() bool { return m.processes() == "" })
	for _, p := range []string{mountpoint, "/mnt/early", "/mnt/auto"} {
		m.nothingLeft(p)
	}
}

// keys puts the server's keys where the AWS tools look for them: mount(8) hands over no
// environment.
func (w *world) keys(root string) {
	w.t.Helper()
	w.write(root, "root/.aws/credentials", "[default]",
		"aws_access_key_id = "+w.server.AccessKey, "aws_secret_access_key = "+w.server.SecretKey)
}

// TestMountByHand is mount(8) called by a person.
func TestMountByHand(t *testing.T) {
	w := newWorld(t)
	m := boot(t, func(root string) { w.install(root); w.keys(root) })
	source, options := "s3://"+w.bucket, "endpoint-url="+w.server.Endpoint+",region="+w.server.Region
	mount := func(options string) (string, error) {
		return m.run("mount", "-t", "fuse.leatfs", source, mountpoint, "-o", options)
	}
	for _, x := range []struct{ options, says string }{
		{options + ",quota", `leatfs: mount option "quota" is not known`},
		{"endpoint-url=http://127.0.0.1:1", "cannot be reached"},
	} {
		out, err := mount(x.options)
		if err == nil || !strings.Contains(out, x.says) || strings.Count(out, "\n") != 1 {
			t.Errorf("mount -o %s: error %v and %q, want one line with %q", x.options, err, out, x.says)
		}
		m.nothingLeft(mountpoint)
	}
	if out, err := mount(options + ",ro,noexec,nofail,_netdev"); err != nil {
		t.Fatalf("mount: %v\n%s", err, out)
	}
	w.check(m, mountpoint)
	if out := m.must("findmnt", "--noheadings", "--output", "SOURCE,FSTYPE,OPTIONS", mountpoint); !strings.Contains(out, source) ||
		!strings.Contains(out, "fuse.leatfs") || !strings.Contains(out, "noexec") {
		t.Errorf("findmnt shows %q", out)
	}
	m.must("umount", mountpoint)
	m.eventually("the daemon ends", func() bool { return m.processes() == "" })
	m.nothingLeft(mountpoint)
}
