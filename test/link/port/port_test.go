package port

import (
	"errors"
	"net"
	"syscall"
	"testing"
)

func TestPort(t *testing.T) {
	p, err := Open("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dial := func() error {
		c, err := net.Dial("tcp4", p.Addr())
		if err == nil {
			c.Close()
		}
		return err
	}
	for range 3 {
		if err := dial(); err != nil {
			t.Errorf("up: %v", err)
		}
		for range 2 {
			if err := p.Down(); err != nil {
				t.Fatal(err)
			}
		}
		if err := dial(); !errors.Is(err, syscall.ECONNREFUSED) || p.Listener() != nil {
			t.Errorf("down: %v", err)
		}
		ln, err := p.Up()
		if err != nil || ln == nil || ln != p.Listener() {
			t.Fatal(ln, err)
		}
		if ln, err := p.Up(); ln != nil || err != nil {
			t.Error(ln, err)
		}
	}
	if err := p.Down(); err != nil {
		t.Fatal(err)
	}
	p.Close()
	p.Close()
	if _, err := p.Up(); err == nil {
		t.Error("Up after Close")
	}
	if p.Down() == nil {
		t.Error("Down after Close")
	}
	if _, err := Open("nonsense"); err == nil {
		t.Error("no error for a bad address")
	}
}
