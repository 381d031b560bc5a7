package s3test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// command is the server's command line. Keys travel in the environment, which other users
// cannot read.
func (s *Server) command() (*exec.Cmd, error) {
	bin, err := Binary(s.Kind)
	if err != nil {
		return nil, err
	}
	base := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.opt.Dir, "TMPDIR=" + os.TempDir()}
	switch s.Kind {
	case Versitygw:
		args := []string{"--port", s.Addr, "--region", s.Region, "--quiet", "--keep-alive", "posix"}
		if s.opt.Versioning {
			v := filepath.Join(s.opt.Dir, "versions")
			if err := os.MkdirAll(v, 0o755); err != nil {
				return nil, fmt.Errorf("s3test: %w", err)
			}
			args = append(args, "--versioning-dir", v)
		}
		cmd := exec.Command(bin, append(args, s.Dir)...)
		cmd.Env = append(base, "ROOT_ACCESS_KEY="+s.AccessKey, "ROOT_SECRET_KEY="+s.SecretKey)
		return cmd, nil
	case MinIO:
		cmd := exec.Command(bin, "server", "--quiet", "--address", s.Addr,
			"--console-address", "127.0.0.1:0", s.Dir)
		cmd.Env = append(base, "MINIO_ROOT_USER="+s.AccessKey, "MINIO_ROOT_PASSWORD="+s.SecretKey,
			"MINIO_BROWSER=off", "MINIO_UPDATE=off", "MINIO_REGION="+s.Region)
		return cmd, nil
	}
	return nil, fmt.Errorf("s3test: unknown kind of server %q", s.Kind)
}
