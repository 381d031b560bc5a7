package main

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/leatfs/leatfs/fs"
)

// What fsync and close promise is said for all files by --fsync and --close, and for those whose path
// matches a pattern by --policy PATTERN:fsync=remote:close=local, or in a configuration file by
//
//	policies:
//	  - path: /ckpt/**
//	    fsync: remote
//	    close: local

// The bounds of --part-size: those of S3.
const (
	minPartSize = 5 << 20
	maxPartSize = 5 << 30
)

// policyList are the policies of all paths, those of patterns first.
func (c *mountConfig) policyList() (out []fs.Policy, err error) {
	rest := fs.Policy{Pattern: "/**", FsyncRemote: c.fsync == remote, CloseRemote: c.closing == remote}
	for _, text := range c.policies {
		p, err := parsePolicy(text, rest)
		if err != nil {
			return nil, fmt.Errorf("--policy %q: %w", text, err)
		}
		out = append(out, p)
	}
	if rest.FsyncRemote || rest.CloseRemote {
		out = append(out, rest)
	}
	return out, nil
}

const remote = "remote"

// parsePolicy reads PATTERN:fsync=local|remote:close=local|remote; what it does not say is as in def. The
// pattern may have colons.
func parsePolicy(text string, def fs.Policy) (fs.Policy, error) {
	p := def
	p.Pattern = text
	said := map[string]bool{}
	for {
		i := strings.LastIndexByte(p.Pattern, ':')
		if i < 0 {
			break
		}
		k, v, ok := strings.Cut(p.Pattern[i+1:], "=")
		var to *bool
		switch {
		case ok && k == "fsync":
			to = &p.FsyncRemote
		case ok && k == "close":
			to = &p.CloseRemote
		}
		if to == nil {
			break
		}
		if said[k] {
			return p, fmt.Errorf("%s is said twice", k)
		}
		if !slices.Contains([]string{"local", remote}, v) {
			return p, fmt.Errorf("%s=%s: use local or remote", k, v)
		}
		said[k], *to = true, v == remote
		p.Pattern = p.Pattern[:i]
	}
	switch {
	case p.Pattern == "":
		return p, errors.New("it names no path: use PATTERN:fsync=remote:close=local")
	case len(said) == 0:
		return p, errors.New("it says nothing of fsync or close: use PATTERN:fsync=remote:close=local")
	}
	below := strings.TrimSuffix(p.Pattern, "/**")
	if below != p.Pattern && strings.ContainsAny(below, `*?[\\`) {
		return p, errors.New("what stands before \"/**\" is a plain path")
	}
	if strings.Contains(p.Pattern, "/") && p.Pattern[0] != '/' {
		return p, errors.New("a path begins with \"/\", the top of the mount; a name alone has none")
	}
	if _, err := path.Match(p.Pattern, ""); err != nil {
		return p, fmt.Errorf("%q is no pattern: %w", p.Pattern, err)
	}
	return p, nil
}

// policyTexts are the policies of a configuration file, as flags have them.
func policyTexts(n ast.Node) (out []string, err error) {
	wrong := errors.New("it must be a list of entries with path, fsync and close")
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		return nil, wrong
	}
	for _, v := range seq.Values {
		var fields []*ast.MappingValueNode
		switch m := v.(type) {
		case *ast.MappingNode:
			fields = m.Values
		case *ast.MappingValueNode:
			fields = []*ast.MappingValueNode{m}
		default:
			return nil, wrong
		}
		said := map[string]string{}
		for _, e := range fields {
			k := e.Key.GetToken().Value
			if !slices.Contains([]string{"path", "fsync", "close"}, k) {
				return nil, fmt.Errorf("there is no %q in it: %w", k, wrong)
			}
			if _, twice := said[k]; twice {
				return nil, fmt.Errorf("%s is given twice", k)
			}
			if said[k], err = text(e.Value); err != nil {
				return nil, fmt.Errorf("%s: %w", k, err)
			}
		}
		p := said["path"]
		for _, k := range []string{"fsync", "close"} {
			if v, ok := said[k]; ok {
				p += ":" + k + "=" + v
			}
		}
		out = append(out, p)
	}
	return out, nil
}
