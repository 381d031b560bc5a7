package main

import (
	"fmt"
	"io"
	"strings"
)

// table prints clients × phases, a row when a client is done.
type table struct {
	w      io.Writer
	phases []string
}

func newTable(w io.Writer, phases []string) *table {
	t := &table{w: w, phases: phases}
	fmt.Fprintf(w, "%-14s", "client")
	for _, p := range phases {
		fmt.Fprintf(w, " %14s", p)
	}
	fmt.Fprintln(w)
	return t
}

// row prints a client's phases: those without a cell were not run.
func (t *table) row(name string, cells map[string]string) {
	fmt.Fprintf(t.w, "%-14s", name)
	for _, p := range t.phases {
		c := cells[p]
		if c == "" {
			c = "-"
		}
		fmt.Fprintf(t.w, " %14s", c)
	}
	fmt.Fprintln(t.w)
}

// requestsColumn is the requests to the bucket of the round without kills, and the files, links and empty
// directories that are there then.
const requestsColumn = "requests/files"

// phaseNames are the phases in their order, and what else there is of a client.
func (c *writeConfig) phaseNames() []string {
	once := []string{"save", "load"}
	if c.plain != "" {
		return once
	}
	once = append(once, "bucket", "fresh")
	all := once
	if !c.noKill {
		for _, p := range once {
			all = append(all[:len(all):len(all)], "killed-"+p)
		}
	}
	return append(all, requestsColumn)
}

// quoted lists some of many.
func quoted(list []string) string {
	const some = 8
	if len(list) > some {
		return fmt.Sprintf("%q and %d more", list[:some], len(list)-some)
	}
	return strings.TrimSpace(fmt.Sprintf("%q", list))
}
