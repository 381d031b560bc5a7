package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/leatfs/leatfs/fs"
)

// statusEntries is how many files a status names.
const statusEntries = 5

// writes is what the status says of what was written.
func (d *daemon) writes() WritesStatus {
	var w WritesStatus
	var err error
	if w.Ledger, err = d.fs.Ledger(statusEntries); err != nil {
		w.LedgerError = err.Error()
	}
	foreign := d.fs.Foreign()
	w.Replaced, w.Removed, w.LastForeign = foreign.Replaced, foreign.Removed, foreign.Last
	w.Reuse = d.fs.ReuseStats()
	caps := d.store.Caps()
	w.Conditional = caps.PutIfNoneMatch && caps.PutIfMatch
	for _, x := range d.cache.Stats().Dirs {
		w.StagedFiles += x.StagedFiles
		w.StagedBytes += x.Staged
		w.BallastBytes += x.Ballast
		w.Full = w.Full || x.Full
	}
	return w
}

// why says why an entry is held, in brackets.
func why(e *fs.LedgerEntry) string {
	if e.Error == "" {
		return ""
	}
	return " (" + e.Error + ")"
}

// showWrites shows it to people: what there is to see to.
func showWrites(w *WritesStatus, row func(name, format string, a ...any)) {
	switch {
	case w.LedgerError != "":
		row("writes", "WHAT IS NOT IN THE BUCKET IS NOT KNOWN: %s", w.LedgerError)
	case w.Total() == 0:
		row("writes", "all in the bucket")
	default:
		var parts []string
		for _, x := range []struct {
			n    int
			what string
		}{{w.Open, "open for writing"}, {w.Waiting, "waiting"}, {w.Uploading, "uploading"}, {w.Failing, "FAILING"}, {w.Held, "HELD"}} {
			if x.n > 0 {
				parts = append(parts, fmt.Sprintf("%d %s", x.n, x.what))
			}
		}
		how := ""
		if len(parts) > 0 {
			how = ": " + strings.Join(parts, ", ")
		}
		if !w.Oldest.IsZero() {
			how += fmt.Sprintf("; the oldest for %v", time.Since(w.Oldest).Round(time.Second))
		}
		row("writes", "not in the bucket yet: %s%s", amount(&w.Ledger), how)
	}
	for i := range w.Entries {
		switch e := &w.Entries[i]; e.State {
		case fs.LedgerFailing:
			row("failing", "%s %s", e.Path, tries(e))
		case fs.LedgerHeld:
			row("held", "%s may not be whole%s: \"leatfs retry\" publishes it, \"leatfs discard\" gives it up", e.Path, why(e))
		}
	}
	if w.Conflicts > 0 {
		row("conflict", "%d files were changed by somebody else too: theirs keep the names, ours are NAME.conflict-HOST-TIME", w.Conflicts)
	}
	if w.Replaced+w.Removed > 0 {
		row("others", "of what was published here, others have replaced %d objects and removed %d; the last: %s", w.Replaced, w.Removed, w.LastForeign)
	}
	if w.StagedFiles > 0 || w.Unlinked > 0 {
		unlinked := ""
		if w.Unlinked > 0 {
			unlinked = fmt.Sprintf("; %d removed files (%s) are still open", w.Unlinked, humanBytes(w.UnlinkedBytes))
		}
		row("staged", "%s in %d files, %s kept free for more%s", humanBytes(w.StagedBytes), w.StagedFiles, humanBytes(w.BallastBytes), unlinked)
	}
	if w.Full {
		row("staged", "THE DISK IS FULL: writes get ENOSPC")
	}
	switch r := &w.Reuse; {
	case r.On && !r.Able:
		row("reuse", "--reuse-parts does nothing here: this store does not copy parts of objects, or not with a checksum of the whole")
	case r.On:
		row("reuse", "%s in %d files were not sent: the bucket had them; %d objects can be compared with", humanBytes(r.Bytes), r.Files, r.Known)
	}
	if !w.Conditional {
		row("store", "no conditional writes: what somebody else writes at the same moment may be overwritten")
	}
}
