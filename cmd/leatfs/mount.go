package main

import (
	"errors"
	"fmt"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/leatfs/leatfs/cmd/leatfs/keeper"
	"github.com/leatfs/leatfs/fs"
	"github.com/leatfs/leatfs/fs/fuse"
	"github.com/leatfs/leatfs/objstore/origin"
)

// mountConfig is everything a mount can be told. Each field is a flag, and the flag's name a
// key of the configuration file.
type mountConfig struct {
	source, mountpoint string
	url                origin.URL      // source, parsed by complete
	ownCacheDir        bool            // cacheDirs is the default, not the user's word
	mounted            bool            // the mount is there: it is taken over
	given              map[string]bool // flags of the command line, not of the configuration file

	cacheDirs   []string
	cacheSize   size
	memory      size
	passthrough string

	endpoint, region, profile string
	noSignRequest             bool
	pathStyle                 string
	requesterPays             bool
	sseCustomerKeyFile        string

	protect, conflicts string
	fsync, closing     string
	policies           []string
	partSize           size
	uploadParallel     int
	reuseParts         bool
	readMetadata       bool

	ttl          time.Duration
	immutable    bool
	staleIfError time.Duration
	readOnly     bool
	allowOther   bool
	uid, gid     uint32
	umask        string
	smallObject  size
	readAhead    size
	fuseOptions  []string
	config       string
	foreground   bool
	logFile      string
	logLevel     string
	logJSON      bool
	metricsAddr  string
	fuseDebug    bool
	maxRequests  int
	listRequests int
	originWait   time.Duration
	noResend     bool
}

func (c *mountConfig) flags(f *pflag.FlagSet) {
	def := fs.Defaults()
	c.smallObject = size(def.SmallObject)
	c.readAhead = 1 << 20
	f.StringArrayVar(&c.cacheDirs, "cache-dir", nil, "directory for cached objects, on NVMe; repeat it for several disks (default /var/cache/leatfs/NAME)")
	f.Var(&c.cacheSize, "cache-size", "bytes that each cache directory may hold (default: four fifths of what is free on its disk)")
	f.Var(&c.memory, "memory", "memory that the daemon may use (default: 512MiB, or an eighth of the machine's if that is less)")
	f.StringVar(&c.passthrough, "passthrough", "auto", "let the kernel read cache files itself: auto or off")
	f.StringVar(&c.endpoint, "endpoint-url", "", "URL of an S3 server that is not AWS (also AWS_ENDPOINT_URL)")
	f.StringVar(&c.region, "region", "", "region of the bucket (also AWS_REGION; asked of the bucket when not given)")
	f.StringVar(&c.profile, "profile", "", "profile of the AWS configuration files (also AWS_PROFILE)")
	f.BoolVar(&c.noSignRequest, "no-sign-request", false, "use no credentials, for public buckets")
	f.StringVar(&c.pathStyle, "path-style", "auto", "bucket in the path, not the host name: auto (for endpoints that are not AWS), on or off")
	f.BoolVar(&c.requesterPays, "requester-pays", false, "agree to pay for requests to a requester-pays bucket")
	f.StringVar(&c.sseCustomerKeyFile, "sse-c-key-file", "", "file with the 32-byte key (raw or base64) of objects encrypted with SSE-C")
	f.DurationVar(&c.ttl, "ttl", def.TTL, "how long what the bucket said of a name is believed")
	f.DurationVar(&c.staleIfError, "stale-if-error", def.StaleIfError, "how much longer while the bucket does not answer; negative: not at all, nor for what this mount wrote")
	f.BoolVar(&c.immutable, "immutable", false, "objects never change: never ask again of a name that was listed")
	f.BoolVar(&c.readMetadata, "read-metadata", false, "believe modes, times and symbolic links that the metadata of objects tell, at the cost of a HEAD for each file; not their owners, nor setuid")
	f.BoolVar(&c.readOnly, "read-only", false, "refuse all changes")
	f.StringVar(&c.protect, "protect", "none", "what may not be replaced, renamed or deleted: none, or foreign (objects that this mount did not write)")
	f.StringVar(&c.conflicts, "conflicts", "keep", "when somebody else changed an object that was changed here too: keep both, or last-wins")
	f.StringVar(&c.fsync, "fsync", "local", "fsync returns when the data is safe on this node's disk (local) or in the bucket (remote)")
	f.StringVar(&c.closing, "close", "local", "close returns at once (local) or when the file is in the bucket (remote)")
	f.StringArrayVar(&c.policies, "policy", nil, "what fsync and close mean for some paths: PATTERN:fsync=remote:close=local; PATTERN as in the shell, or /DIR/**; repeat it, the first that matches holds")
	f.Var(&c.partSize, "part-size", "size of the parts that large files are uploaded in (default 16MiB)")
	f.IntVar(&c.uploadParallel, "upload-parallel", 16, "parts being uploaded at the same time at most")
	f.BoolVar(&c.reuseParts, "reuse-parts", false, "have the store copy the parts of a large file that are as in an earlier one (the last checkpoint), instead of sending them")
	f.BoolVar(&c.allowOther, "allow-other", false, "let other users use the mount (permissions are checked by mode)")
	f.Uint32Var(&c.uid, "uid", uint32(os.Getuid()), "owner of all files")
	f.Uint32Var(&c.gid, "gid", uint32(os.Getgid()), "group of all files")
	f.StringVar(&c.umask, "umask", "022", "permission bits that files (0666) and directories (0777) do not have, octal")
	f.Var(&c.smallObject, "small-object", "objects up to this size are fetched whole when they are opened")
	f.Var(&c.readAhead, "read-ahead", "the kernel's readahead for files that are not yet whole in the cache")
	f.StringArrayVarP(&c.fuseOptions, "options", "o", nil, "mount options, separated by commas: noexec, nonempty, context=…")
	f.StringVar(&c.config, "config", "", "YAML file; its keys are the names of these flags, source and mountpoint")
	f.BoolVar(&c.foreground, "foreground", false, "stay in the foreground and log to standard error")
	f.StringVar(&c.logFile, "log-file", "", "log of a mount in the background (default leatfs.log in the first cache directory)")
	f.StringVar(&c.logLevel, "log-level", "info", "debug, info, warn or error")
	f.BoolVar(&c.logJSON, "log-json", false, "log in JSON")
	f.StringVar(&c.metricsAddr, "metrics-addr", "", "TCP address for Prometheus, such as 127.0.0.1:9100 (metrics are always on the control socket)")
	f.BoolVar(&c.fuseDebug, "fuse-debug", false, "log every FUSE request")
	f.IntVar(&c.maxRequests, "max-requests", 128, "requests to the bucket in flight at most")
	f.IntVar(&c.listRequests, "list-parallel", def.ListParallel, "LIST requests in flight for one directory at most")
	f.DurationVar(&c.originWait, "origin-timeout", 60*time.Second, "how long a request is tried again before the application gets an error")
	f.BoolVar(&c.noResend, "no-resend", false, "after a restart, answer requests from records, as on kernels before 6.9, instead of having them sent again")
	_ = f.MarkHidden("no-resend") // for tests; the flag is there, so this cannot fail
}

func mountCommand() *cobra.Command {
	var c mountConfig
	cmd := &cobra.Command{
		Use:   "mount s3://BUCKET[/PREFIX] MOUNTPOINT",
		Short: "Mount a bucket",
		Long: `Mount a bucket, or what is under a prefix of it, as a directory.

The command returns when the mount answers; a daemon goes on serving it until
"leatfs umount MOUNTPOINT". Credentials come from where the AWS tools find them.
file:///DIRECTORY in place of s3:// mounts a directory, such as one of a parallel
file system, through the same cache.`,
		Example: `  leatfs mount s3://datasets/imagenet /mnt/data --cache-dir /nvme/leatfs
  leatfs mount --config /etc/leatfs/data.yaml`,
		Args: usageArgs(cobra.MaximumNArgs(2)),
	}
	c.flags(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		link, err := keeper.Attach()
		if err != nil {
			return err
		}
		if link != nil {
			return work(cmd.Context(), &c, cmd.Flags(), args, link)
		}
		c.mounted = inherited()
		if err := c.complete(cmd.Flags(), args); err != nil {
			if c.mounted {
				return errors.New(singleLine(err)) // no error of usage: the service manager must try again, or lose the mount
			}
			return err
		}
		if c.foreground {
			return becomeKeeper(c.upgradeArgs(cmd.Flags()))
		}
		return startBackground(cmd.Context(), c.mountpoint, c.upgradeArgs(cmd.Flags()))
	}
	return cmd
}

// complete takes the arguments and the configuration file, and checks what can be checked
// without the network. Relative paths become absolute: the daemon runs in "/".
func (c *mountConfig) complete(flags *pflag.FlagSet, args []string) error {
	c.given = make(map[string]bool)
	flags.Visit(func(f *pflag.Flag) { c.given[f.Name] = true })
	if c.config != "" {
		var err error
		if c.config, err = filepath.Abs(c.config); err != nil {
			return err
		}
		fromFile, err := loadConfig(c.config, flags)
		if err != nil {
			return err
		}
		c.source, c.mountpoint = fromFile[keySource], fromFile[keyMountpoint]
	}
	if len(args) > 0 {
		c.source = args[0]
	}
	if len(args) > 1 {
		c.mountpoint = args[1]
	}
	if c.source == "" || c.mountpoint == "" {
		return usageError{errors.New("what to mount and where: leatfs mount s3://BUCKET[/PREFIX] MOUNTPOINT")}
	}
	var err error
	if c.url, err = origin.Parse(c.source); err != nil {
		return usageError{err}
	}
	if err := c.checkFlags(); err != nil {
		return usageError{err}
	}
	if err := c.checkOptions(); err != nil {
		return usageError{err}
	}
	return c.checkPaths()
}

// checkOptions checks what was given with -o.
func (c *mountConfig) checkOptions() error {
	var opts []string
	for _, o := range c.fuseOptions {
		opts = append(opts, strings.Split(o, ",")...)
	}
	c.fuseOptions = opts
	// Of the root directory, which is there and may hold files, nothing else can be wrong.
	root := fuse.MountOptions{Mountpoint: "/", Extra: append(slices.Clone(opts), "nonempty")}
	return root.Check()
}

// checkFlags checks the values of flags.
func (c *mountConfig) checkFlags() error {
	for _, x := range []struct{ flag, value, want string }{
		{"passthrough", c.passthrough, "auto off"},
		{"path-style", c.pathStyle, "auto on off"},
		{"log-level", c.logLevel, "debug info warn error"},
		{"protect", c.protect, "none foreign"},
		{"conflicts", c.conflicts, "keep last-wins"},
		{"fsync", c.fsync, "local remote"},
		{"close", c.closing, "local remote"},
	} {
		if want := strings.Fields(x.want); !slices.Contains(want, x.value) {
			n := len(want) - 1
			return fmt.Errorf("--%s %q: use %s or %s", x.flag, x.value, strings.Join(want[:n], ", "), want[n])
		}
	}
	if e := c.endpoint; e != "" {
		if u, err := url.Parse(e); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return fmt.Errorf("--endpoint-url %q is not a URL such as http://HOST:PORT or https://HOST", e)
		}
	}
	switch {
	case c.ttl < 0:
		return fmt.Errorf("--ttl %v: it cannot be negative", c.ttl)
	case c.originWait < time.Second:
		return fmt.Errorf("--origin-timeout %v: at least 1s", c.originWait)
	case c.maxRequests < 1 || c.maxRequests > 4096:
		return fmt.Errorf("--max-requests %d: from 1 to 4096", c.maxRequests)
	case c.listRequests < 1 || c.listRequests > 256:
		return fmt.Errorf("--list-parallel %d: from 1 to 256", c.listRequests)
	case c.cacheSize != 0 && c.cacheSize < minCacheSize:
		return fmt.Errorf("--cache-size %s is too little: at least %s", &c.cacheSize, humanBytes(minCacheSize))
	case c.uploadParallel < 1 || c.uploadParallel > 1024:
		return fmt.Errorf("--upload-parallel %d: from 1 to 1024", c.uploadParallel)
	case c.partSize != 0 && (c.partSize < minPartSize || c.partSize > maxPartSize):
		return fmt.Errorf("--part-size %s: from %s to %s", &c.partSize, humanBytes(minPartSize), humanBytes(maxPartSize))
	case c.protect == "foreign" && c.conflicts == "last-wins":
		return errors.New("--protect=foreign and --conflicts=last-wins contradict each other: choose one")
	case c.uid == math.MaxUint32 || c.gid == math.MaxUint32:
		return errors.New("--uid and --gid: 4294967295 means nobody at all")
	}
	if _, err := c.policyList(); err != nil {
		return err
	}
	if c.memory == 0 {
		c.memory = size(memoryDefault())
	}
	if _, err := divide(int64(c.memory)); err != nil {
		return err
	}
	_, err := c.permissions()
	return err
}

// checkPaths makes paths absolute and looks at what is there.
func (c *mountConfig) checkPaths() error {
	var err error
	// Asked the way around a mount that is there: nobody may serve it yet, or any more.
	if name, err := mountedName(c.mountpoint); err == nil {
		c.mountpoint = name
	} else if c.mounted {
		return err
	} else if c.mountpoint, err = filepath.Abs(c.mountpoint); err != nil {
		return err
	} else {
		c.mountpoint = resolve(c.mountpoint)
	}
	if c.logFile != "" {
		if c.logFile, err = filepath.Abs(c.logFile); err != nil {
			return err
		}
		c.logFile = resolve(c.logFile)
	}
	if f := c.sseCustomerKeyFile; f != "" {
		if _, err := os.Stat(f); err != nil {
			// The value may be the key itself, by mistake: it does not go into a message.
			return fmt.Errorf("--sse-c-key-file: the file cannot be read: %w", errors.Unwrap(err))
		}
		if c.sseCustomerKeyFile, err = filepath.Abs(f); err != nil {
			return err
		}
	}
	if !c.mounted && !seemsDead(c.mountpoint) {
		if err := c.checkMountpoint(); err != nil {
			return err
		}
	}
	if len(c.cacheDirs) == 0 {
		c.cacheDirs, c.ownCacheDir = []string{defaultCacheDir(c.mountpoint)}, true
	}
	for i, d := range c.cacheDirs {
		if d == "" {
			return usageError{errors.New("--cache-dir is empty: name a directory on NVMe")}
		}
		if c.cacheDirs[i], err = filepath.Abs(d); err != nil {
			return err
		}
	}
	return c.checkPlaces()
}

// checkMountpoint looks at the mount point.
func (c *mountConfig) checkMountpoint() error {
	return (&fuse.MountOptions{Mountpoint: c.mountpoint, Extra: c.fuseOptions}).Check()
}

// checkPlaces refuses places that lie in one another, where the mount would wait for itself
// or grow without end.
func (c *mountConfig) checkPlaces() error {
	var real []string
	for i, d := range c.cacheDirs {
		r := resolve(d)
		if within(r, c.mountpoint) {
			return usageError{fmt.Errorf("cache directory %s lies under the mount point %s; choose another with --cache-dir", d, c.mountpoint)}
		}
		for j, other := range real {
			if within(r, other) || within(other, r) {
				return usageError{fmt.Errorf("cache directories %s and %s lie in one another; choose separate ones", c.cacheDirs[j], c.cacheDirs[i])}
			}
		}
		real = append(real, r)
	}
	if c.logFile != "" && within(c.logFile, c.mountpoint) {
		return usageError{fmt.Errorf("the log file %s lies under the mount point %s; choose another with --log-file", c.logFile, c.mountpoint)}
	}
	if c.url.Scheme != origin.File {
		return nil
	}
	source := resolve(c.url.Path)
	if within(c.mountpoint, source) {
		return usageError{fmt.Errorf("mount point %s lies in %s, which is to be mounted there; choose one outside of it", c.mountpoint, source)}
	}
	for i, r := range real {
		if within(r, source) {
			return usageError{fmt.Errorf("cache directory %s lies in %s, which is to be mounted; choose another with --cache-dir", c.cacheDirs[i], source)}
		}
	}
	return nil
}

// defaultCacheDir is one of the mount point's own, so that two mounts do not meet.
func defaultCacheDir(mountpoint string) string {
	base := "/var/cache/leatfs"
	if os.Geteuid() != 0 {
		if d, err := os.UserCacheDir(); err == nil {
			base = filepath.Join(d, "leatfs", "mounts")
		}
	}
	return filepath.Join(base, strings.ReplaceAll(strings.Trim(mountpoint, "/"), "/", "-"))
}

// again is the command line of a worker that replaces one that has died: all that was set, with
// absolute paths. The configuration file, which may be being edited, is in it and not read again.
func (c *mountConfig) again(flags *pflag.FlagSet) []string {
	return c.line(flags, func(name string) bool { return name != "config" && flags.Changed(name) })
}

// upgradeArgs is the command line of the first worker, and of those of upgrades: what the command
// line said, with absolute paths. The configuration file is read again.
func (c *mountConfig) upgradeArgs(flags *pflag.FlagSet) []string {
	return c.line(flags, func(name string) bool { return c.given[name] })
}

func (c *mountConfig) line(flags *pflag.FlagSet, wanted func(name string) bool) []string {
	args := []string{"mount", c.source, c.mountpoint}
	flags.VisitAll(func(f *pflag.Flag) {
		switch {
		case f.Name == "cache-dir" || f.Name == "options" || f.Name == "policy" || !wanted(f.Name):
		case f.Name == "config":
			args = append(args, "--config="+c.config)
		case f.Name == "log-file":
			args = append(args, "--log-file="+c.logFile)
		case f.Name == "sse-c-key-file":
			args = append(args, "--sse-c-key-file="+c.sseCustomerKeyFile)
		default:
			args = append(args, "--"+f.Name+"="+f.Value.String())
		}
	})
	if !c.ownCacheDir && wanted("cache-dir") {
		for _, d := range c.cacheDirs {
			args = append(args, "--cache-dir="+d)
		}
	}
	if wanted("options") {
		for _, o := range c.fuseOptions {
			args = append(args, "--options="+o)
		}
	}
	if wanted("policy") {
		for _, p := range c.policies {
			args = append(args, "--policy="+p)
		}
	}
	return args
}

// isReadOnly tells whether nothing can be changed: by a flag of this program, or as mount(8) says it.
func (c *mountConfig) isReadOnly() bool { return c.readOnly || slices.Contains(c.fuseOptions, "ro") }

// permissions are the mode bits of files and directories.
func (c *mountConfig) permissions() (umask uint32, err error) {
	m, err := strconv.ParseUint(c.umask, 8, 32)
	if err != nil || m > 0o777 {
		return 0, fmt.Errorf("--umask %q: use octal digits such as 022", c.umask)
	}
	return uint32(m), nil
}

func (c *mountConfig) fsOptions() fs.Options {
	o := fs.Defaults()
	o.TTL, o.Immutable, o.ReadOnly = c.ttl, c.immutable, c.isReadOnly()
	o.NegativeTTL, o.StaleIfError = min(o.NegativeTTL, c.ttl), c.staleIfError
	o.UID, o.GID = c.uid, c.gid
	umask, _ := c.permissions() // checked by complete
	o.FileMode, o.DirMode = 0o666&^umask, 0o777&^umask
	o.SmallObject = int64(c.smallObject)
	o.ListParallel = c.listRequests
	o.Protect, o.LastWins = c.protect == "foreign", c.conflicts == "last-wins"
	o.Policies, _ = c.policyList() // checked by complete
	o.PartSize, o.UploadParallel = int64(c.partSize), c.uploadParallel
	o.ReuseParts, o.Metadata = c.reuseParts, c.readMetadata
	o.Scratch = c.cacheDirs[0]
	return o
}

// logPath is where a mount in the background logs to.
func (c *mountConfig) logPath() string {
	if c.logFile != "" {
		return c.logFile
	}
	return filepath.Join(c.cacheDirs[0], cacheLog)
}
