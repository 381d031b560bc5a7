package powercut

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/leatfs/leatfs/test/powercut/record"
)

// Programs that have an own way to be safe from power cuts, unmodified.

// inserts fills a table row by row, each in a transaction of its own that sqlite syncs, and says each row that is
// committed; every third transaction is large, so that sqlite writes pages before the commit.
const inserts = `
import sqlite3, sys
path, marks, mode = sys.argv[1:]
db = sqlite3.connect(path, isolation_level=None)
db.execute("PRAGMA journal_mode=" + mode)
db.execute("PRAGMA synchronous=FULL" if mode != "delete" else "PRAGMA synchronous=EXTRA")
db.execute("PRAGMA cache_size=4")
db.execute("CREATE TABLE t (k INTEGER PRIMARY KEY, v BLOB)")
ack = open(marks, "ab", buffering=0)
for k in range(24):
    db.execute("BEGIN")
    db.execute("INSERT INTO t VALUES (?, ?)", (k, b"%d " % k * 500))
    if k % 3 == 0:
        db.execute("UPDATE t SET v = ? || k", (b"%d " % k * 700,))
    db.execute("COMMIT")
    ack.write(b"rows %d" % (k + 1))
`

// rows prints how many rows there are after sqlite has mended what it finds.
const rows = `
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)], "integrity_check"
print(db.execute("SELECT count(*) FROM t").fetchone()[0] if db.execute("SELECT 1 FROM sqlite_master").fetchone() else 0)
`

// last returns the number in the last mark that begins with prefix, -1 without one.
func last(acked []string, prefix string) (n int) {
	n = -1
	for _, s := range acked {
		if rest, ok := strings.CutPrefix(s, prefix); ok {
			if _, err := fmt.Sscan(rest, &n); err != nil {
				n = -1
			}
		}
	}
	return n
}

// SQLite has every row whose transaction had been committed, and no database that is not whole, with a rollback journal and
// with a write-ahead log.
func TestSQLitePowerCut(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err == nil {
		err = exec.Command(python, "-c", "import sqlite3").Run()
	}
	if err != nil {
		t.Fatalf("this test needs a python3 with sqlite3 (make deps): %v", err)
	}
	Both(t, func(t *testing.T, fs FS) {
		for _, mode := range []string{"delete", "wal"} {
			t.Run(mode, func(t *testing.T) {
				m := newMachine(t, fs)
				away := m.away()
				x, err := m.start(m.d.Dir(), 1)
				if err != nil {
					t.Fatal(err)
				}
				_, err = m.run(x, python, "-c", inserts, m.mnt+"/db", m.d.AckFile(), mode)
				if err = errors.Join(err, x.kill()); err != nil {
					t.Fatalf("%v\nleatfs said:\n%s", err, x.log)
				}
				away.Remove()
				first := m.d.AtAcks("rows")[0].At
				cuts := chosen(m.d.AtAcks("rows"), Number(t, 2, 24))
				for _, c := range m.d.Cuts(Number(t, 4, 30), 60) {
					if c.At >= first {
						cuts = append(cuts, c)
					}
				}
				m.d.Check(cuts, func(a *After) (err error) {
					if err := m.emptyBucket(); err != nil {
						return err
					}
					x, err := m.start(a.Dir, 2)
					if err != nil {
						return err
					}
					defer func() {
						if err = errors.Join(err, x.kill()); err != nil {
							err = fmt.Errorf("%w\nleatfs said:\n%s", err, x.log)
						}
					}()
					out, err := m.run(x, python, "-c", rows, m.mnt+"/db")
					if err != nil {
						return err
					}
					var n int
					if _, err := fmt.Sscan(out, &n); err != nil {
						return err
					}
					if want := last(a.Acked, "rows "); n < want || n > want+1 {
						return fmt.Errorf("%d rows, %d were committed", n, want)
					}
					return nil
				})
			})
		}
	})
}

// commits makes commits one after the other, and says each.
const commits = `
set -e
cd "$1"
git init -q -b main .
git config user.name A; git config user.email a@example.org
git config core.fsync all; git config core.fsyncMethod fsync; git config gc.auto 0
find .git -type f -exec sync {} + # git does not sync what init makes
for i in $(seq 1 8); do
	mkdir -p d$i
	seq $i 3000 >d$i/f
	seq 1 $i >g
	git add -A
	git commit -q -m "change $i"
	sync .git/refs/heads # git syncs the ref before its rename, and not the directory after it
	printf 'commit %d %s' $i $(git rev-parse HEAD) >>"$2"
done
`

// A git repository that syncs has every commit that was made, and fsck finds all that belongs to them: in the mount, and in the
// bucket, in which no ref comes before what it names.
func TestGitPowerCut(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Fatalf("this test needs git (make deps): %v", err)
	}
	t.Setenv("GIT_CONFIG_GLOBAL", "/dev/null")
	t.Setenv("GIT_CONFIG_SYSTEM", "/dev/null")
	Both(t, func(t *testing.T, fs FS) {
		m := newMachine(t, fs)
		away := m.away()
		x, err := m.start(m.d.Dir(), 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(x.Dir+"/repo", 0o755); err != nil {
			t.Fatal(err)
		}
		_, err = m.run(x, "sh", "-c", commits, "sh", m.mnt+"/repo", m.d.AckFile())
		if err = errors.Join(err, x.kill()); err != nil {
			t.Fatalf("%v\nleatfs said:\n%s", err, x.log)
		}
		away.Remove()
		marks := m.d.AtAcks("commit")
		cuts := chosen(marks, Number(t, 2, 8))
		for _, c := range m.d.Cuts(Number(t, 3, 30), 70) {
			if c.At >= marks[0].At {
				cuts = append(cuts, c)
			}
		}
		cuts = append(cuts, record.Cut{At: m.d.Position(), How: record.None})
		m.d.Check(cuts, func(a *After) (err error) {
			if err := m.emptyBucket(); err != nil {
				return err
			}
			x, err := m.start(a.Dir, 2)
			if err != nil {
				return err
			}
			defer func() {
				if err = errors.Join(err, x.kill()); err != nil {
					err = fmt.Errorf("%w\nleatfs said:\n%s", err, x.log)
				}
			}()
			var made string
			var n int
			for _, s := range a.Acked {
				if strings.HasPrefix(s, "commit ") {
					if _, err := fmt.Sscanf(s, "commit %d %s", &n, &made); err != nil {
						return err
					}
				}
			}
			if _, err := m.sync(x); err != nil {
				return err
			}
			b, err := m.bucketNow()
			if err != nil {
				return err
			}
			copied := t.TempDir()
			for key, body := range b {
				if strings.HasSuffix(key, "/") {
					err = os.MkdirAll(copied+"/"+key, 0o755)
				} else if err = os.MkdirAll(copied+"/"+key[:strings.LastIndex(key, "/")+1], 0o755); err == nil {
					err = os.WriteFile(copied+"/"+key, body, 0o644)
				}
				if err != nil {
					return err
				}
			}
			for _, dir := range []string{m.mnt, copied} {
				git := func(args ...string) (string, error) {
					return m.run(x, "git", append([]string{"-c", "safe.directory=*", "-C", dir + "/repo"}, args...)...)
				}
				if _, err := git("fsck", "--full", "--no-dangling", "--no-reflogs"); err != nil {
					return fmt.Errorf("%d commits: %w", n, err)
				}
				if _, err := git("merge-base", "--is-ancestor", made, "main"); err != nil {
					return fmt.Errorf("commit %d is not in main: %w", n, err)
				}
			}
			return nil
		})
	})
}
