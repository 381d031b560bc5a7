package meta

import "testing"

// BenchmarkCloseLog: what it costs to note that a file was closed, with a thousand of them before they are complete.
func BenchmarkCloseLog(b *testing.B) {
	l, err := openCloses(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	defer l.close()
	for i := range b.N {
		if err := l.Closed(Ino(i+1), func() bool { return true }); err != nil {
			b.Fatal(err)
		}
		if i%1000 == 999 {
			l.Turn()
			if err := l.Done(); err != nil {
				b.Fatal(err)
			}
		}
	}
}
