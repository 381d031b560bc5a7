package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/spf13/pflag"
)

// The keys of a configuration file that are not flags but the two arguments.
const (
	keySource     = "source"
	keyMountpoint = "mountpoint"
)

// keyPolicies is the flag "policy" in a form that is easier to read.
const (
	keyPolicies = "policies"
	flagPolicy  = "policy"
)

// loadConfig sets, from a YAML file, the flags that the command line did not set. Its keys
// are the names of the flags, so that whatever can be said in one place can be said in the
// other; "source" and "mountpoint" are the two arguments, returned when they are there.
//
// A value is taken as it is written, and so means what it would on the command line: YAML's
// own notion of it (022 is eighteen) is not asked for.
func loadConfig(path string, flags *pflag.FlagSet) (args map[string]string, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("configuration file: %w", err)
	}
	entries, err := mapping(b)
	if err != nil {
		return nil, usageError{fmt.Errorf("configuration file %s: %w", path, err)}
	}
	args = make(map[string]string)
	seen := make(map[string]bool)
	for _, e := range entries {
		k := e.Key.GetToken().Value
		if err := configEntry(flags, k, e.Value, seen, args); err != nil {
			return nil, usageError{fmt.Errorf("configuration file %s, line %d: %w", path, e.Key.GetToken().Position.Line, err)}
		}
	}
	return args, nil
}

// mapping are the entries of a file that is one YAML mapping, or nothing.
func mapping(b []byte) ([]*ast.MappingValueNode, error) {
	f, err := parser.ParseBytes(b, 0)
	if err != nil {
		return nil, errors.New(oneLine(yaml.FormatError(err, false, false)))
	}
	var body ast.Node
	for _, d := range f.Docs {
		if d.Body == nil || d.Body.Type() == ast.CommentType {
			continue
		}
		if body != nil {
			return nil, errors.New("it holds several YAML documents; one is wanted")
		}
		body = d.Body
	}
	switch n := body.(type) {
	case nil, *ast.NullNode:
		return nil, nil
	case *ast.MappingNode:
		return n.Values, nil
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}, nil
	}
	return nil, errors.New("it must be lines such as \"memory: 1GiB\"")
}

// configEntry takes one entry of the file.
func configEntry(flags *pflag.FlagSet, k string, node ast.Node, seen map[string]bool, args map[string]string) error {
	written := k
	if k == keyPolicies {
		k = flagPolicy
	}
	flag := flags.Lookup(k)
	isArg := k == keySource || k == keyMountpoint
	if !isArg && (flag == nil || k == "config" || k == "help") {
		return fmt.Errorf("there is no option %q; the options are the flags of \"leatfs mount --help\", source and mountpoint", k)
	}
	if seen[k] {
		return fmt.Errorf("%s is given twice", k)
	}
	seen[k] = true
	texts, list, err := entryTexts(written, node)
	if err != nil {
		return fmt.Errorf("%s: %w", written, err)
	}
	if list && (isArg || flag.Value.Type() != "stringArray") {
		return fmt.Errorf("%s: a list, where one value is wanted", k)
	}
	if isArg {
		args[k] = texts[0]
		return nil
	}
	if flag.Changed {
		return nil
	}
	for _, t := range texts {
		if err := flags.Set(k, t); err != nil {
			return err // names the option
		}
	}
	return nil
}

// entryTexts are the values of an entry.
func entryTexts(k string, n ast.Node) (out []string, list bool, err error) {
	if k == keyPolicies {
		out, err = policyTexts(n)
		return out, true, err
	}
	return texts(n)
}

// texts are the values of a scalar or a list of scalars, as they are written.
func texts(n ast.Node) (out []string, list bool, err error) {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		t, err := text(n)
		return []string{t}, false, err
	}
	for _, v := range seq.Values {
		t, err := text(v)
		if err != nil {
			return nil, true, err
		}
		out = append(out, t)
	}
	return out, true, nil
}

func text(n ast.Node) (string, error) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, nil
	case *ast.LiteralNode:
		return strings.TrimRight(n.Value.Value, "\n"), nil
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return n.GetToken().Value, nil
	case *ast.NullNode:
		return "", errors.New("it has no value; give one, or remove the line")
	}
	return "", errors.New("the value must be a text, a number, true or false, or a list of them")
}

// oneLine is the first line of a text that has something to say.
func oneLine(s string) string {
	lines := slices.DeleteFunc(strings.Split(s, "\n"), func(l string) bool { return strings.TrimSpace(l) == "" })
	if len(lines) == 0 {
		return ""
	}
	return strings.TrimSpace(lines[0])
}
