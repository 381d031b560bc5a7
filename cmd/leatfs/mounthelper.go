package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/leatfs/leatfs/fs/fuse"
)

// mount(8) runs a program of its own for types of file systems that it does not know: for
// "fuse.leatfs" that is /sbin/mount.fuse.leatfs, a link to this binary, which it calls as
//
//	mount.fuse.leatfs SOURCE MOUNTPOINT [-sfnvrw] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]
//
// The options are the flags of "leatfs mount" without their dashes, and those of mount(8).

// Exit codes that mount(8) expects of its helpers.
const (
	exitHelperUsage  = 1
	exitHelperFailed = 32
)

// runAs is run for the name that the program was called by, argv[0]: a helper of mount(8), or
// any other. It returns the exit code.
func runAs(ctx context.Context, argv []string, stdout, stderr io.Writer) int {
	if len(argv) == 0 {
		return run(ctx, nil, stdout, stderr)
	}
	if !isHelper(argv) {
		return run(ctx, argv[1:], stdout, stderr)
	}
	args, err := helperArgs(argv)
	if err != nil {
		fmt.Fprintf(stderr, "leatfs: %s\n", singleLine(err))
		return exitHelperUsage
	}
	if args == nil {
		return exitOK
	}
	switch run(ctx, args, stdout, stderr) {
	case exitOK:
		return exitOK
	case exitUsage:
		return exitHelperUsage
	}
	return exitHelperFailed
}

// isHelper tells a call by mount(8) from any other, also from one that this program makes of
// itself by the name that it was called by: what is to be mounted is never named "mount".
func isHelper(argv []string) bool {
	switch filepath.Base(argv[0]) {
	case "mount.fuse.leatfs", "mount.leatfs":
		return len(argv) < 2 || argv[1] != "mount"
	}
	return false
}

// helperCall is the command line of a mount helper.
type helperCall struct {
	name                   string
	places, options        []string
	fake, sloppy, readOnly bool
}

// helperArgs translates the command line of a mount helper, its name included, to arguments
// of this program. They are nil where nothing is to be done (mount --fake).
func helperArgs(argv []string) ([]string, error) {
	h := helperCall{name: filepath.Base(argv[0])}
	for rest := argv[1:]; len(rest) > 0; {
		a := rest[0]
		rest = rest[1:]
		letters, isOption := strings.CutPrefix(a, "-")
		if !isOption || letters == "" {
			h.places = append(h.places, a)
			continue
		}
		var err error
		if rest, err = h.short(letters, rest); err != nil {
			return nil, err
		}
	}
	if len(h.places) != 2 {
		return nil, fmt.Errorf("what to mount and where: mount -t fuse.leatfs s3://BUCKET[/PREFIX] MOUNTPOINT [-o OPTIONS]; got %q", h.places)
	}
	args := append([]string{"mount"}, h.places...)
	if h.readOnly {
		args = append(args, "--read-only")
	}
	more, err := helperOptions(strings.Join(h.options, ","), h.sloppy)
	if err != nil || h.fake {
		return nil, err
	}
	return append(args, more...), nil
}

// short takes short options that stand together, without their dash; the last may have its
// value in rest. It returns what of rest is left.
func (h *helperCall) short(letters string, rest []string) ([]string, error) {
	for i, c := range letters {
		switch c {
		case 's':
			h.sloppy = true
		case 'f':
			h.fake = true
		case 'r':
			h.readOnly = true
		case 'n', 'v', 'w': // there is no mtab; errors are told anyway; "rw" does not undo read-only
		case 'N', 'o', 't':
			value := letters[i+1:]
			if value == "" {
				if len(rest) == 0 {
					return nil, fmt.Errorf("%s: -%c wants a value", h.name, c)
				}
				value, rest = rest[0], rest[1:]
			}
			if c == 'N' {
				return nil, fmt.Errorf("%s: -N %s: leatfs mounts in the namespace that it is started in; use \"nsenter\"", h.name, value)
			}
			if c == 'o' {
				h.options = append(h.options, value)
			}
			return rest, nil // -t says fuse.leatfs
		default:
			return nil, fmt.Errorf("%s: there is no option -%c; use \"mount -t fuse.leatfs\" or \"leatfs mount\"", h.name, c)
		}
	}
	return rest, nil
}

// helperOptions translates what was given with -o; sloppy leaves out what is not known.
func helperOptions(text string, sloppy bool) ([]string, error) {
	split, err := splitOptions(text)
	if err != nil {
		return nil, err
	}
	flags := pflag.NewFlagSet("mount", pflag.ContinueOnError)
	new(mountConfig).flags(flags)
	var args []string
	for _, o := range split {
		name, value, hasValue := strings.Cut(o, "=")
		if forOthers(name) {
			continue
		}
		f := flags.Lookup(name)
		if f == nil {
			f = flags.Lookup(strings.ReplaceAll(name, "_", "-"))
		}
		switch {
		case f == nil:
			// Of the root directory, which is there and may hold files, nothing else can be wrong.
			err := (&fuse.MountOptions{Mountpoint: "/", Extra: []string{o, "nonempty"}}).Check()
			if err != nil && sloppy {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("%w; the options are the flags of \"leatfs mount --help\" without \"--\", and those of mount(8)", err)
			}
			args = append(args, "--options="+o)
		case f.Name == "options" || f.Name == "foreground":
			return nil, fmt.Errorf("mount option %q: it is not for mount(8); use \"leatfs mount --%s\"", o, f.Name)
		case hasValue:
			args = append(args, "--"+f.Name+"="+value)
		case f.NoOptDefVal == "":
			return nil, fmt.Errorf("mount option %q wants a value: %s=%s", o, name, strings.ToUpper(f.Value.Type()))
		default:
			args = append(args, "--"+f.Name)
		}
	}
	return args, nil
}

// forOthers are the options that mount(8), systemd and those who mount at boot look at.
func forOthers(name string) bool {
	switch name {
	case "", "defaults", "auto", "noauto", "nofail", "_netdev", "_rnetdev", "user", "nouser", "users", "owner",
		"noowner", "group", "nogroup", "comment":
		return true
	}
	return strings.HasPrefix(name, "x-") || strings.HasPrefix(name, "X-")
}

// splitOptions cuts a list of options at its commas. A comma in a value is written "\,", or
// the value stands between double quotes; a backslash is written "\\", a quote "\"".
func splitOptions(text string) ([]string, error) {
	var out []string
	var b strings.Builder
	quoted := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\' && i+1 < len(text) && strings.IndexByte(`\,"`, text[i+1]) >= 0:
			i++
			b.WriteByte(text[i])
		case c == '"':
			quoted = !quoted
		case c == ',' && !quoted:
			out = append(out, b.String())
			b.Reset()
		default:
			b.WriteByte(c)
		}
	}
	if quoted {
		return nil, errors.New("mount options: a double quote is not closed: " + text)
	}
	return append(out, b.String()), nil
}
