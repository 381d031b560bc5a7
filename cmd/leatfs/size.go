package main

import (
	"fmt"
	"strconv"
	"strings"
)

// size is a number of bytes on the command line: "512MiB", "1.5GB", "4096".
type size int64

// String implements pflag.Value. Set reads the same number from it.
func (s *size) String() string {
	text := humanBytes(int64(*s))
	var back size
	if *s == 0 || back.Set(text) != nil || back != *s {
		return strconv.FormatInt(int64(*s), 10) // not a round number of any unit
	}
	return text
}

// Type implements pflag.Value.
func (s *size) Type() string { return "size" }

// Set implements pflag.Value.
func (s *size) Set(text string) error {
	t := strings.TrimSpace(text)
	i := strings.LastIndexAny(t, "0123456789.") + 1
	n, err := strconv.ParseFloat(t[:i], 64)
	unit, ok := sizeUnit(strings.ToLower(strings.TrimSpace(t[i:])))
	if err != nil || !ok || n < 0 || n*unit >= 1<<63 {
		return fmt.Errorf("%q is not a size such as 512MiB, 20GiB or 1TB", text)
	}
	*s = size(n * unit)
	return nil
}

func sizeUnit(u string) (float64, bool) {
	switch u {
	case "", "b":
		return 1, true
	case "k", "kib", "ki":
		return 1 << 10, true
	case "m", "mib", "mi":
		return 1 << 20, true
	case "g", "gib", "gi":
		return 1 << 30, true
	case "t", "tib", "ti":
		return 1 << 40, true
	case "kb":
		return 1e3, true
	case "mb":
		return 1e6, true
	case "gb":
		return 1e9, true
	case "tb":
		return 1e12, true
	}
	return 0, false
}

// humanBytes writes a number of bytes for people.
func humanBytes(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	f, i := float64(n), 0
	for f >= 1024 && i < len(units)-1 {
		f, i = f/1024, i+1
	}
	if f == float64(int64(f)) {
		return fmt.Sprintf("%d%s", int64(f), units[i])
	}
	return fmt.Sprintf("%.1f%s", f, units[i])
}
